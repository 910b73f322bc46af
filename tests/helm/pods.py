# SPDX-License-Identifier: Apache-2.0
"""Runs the pods of a rendered chart as local processes, with the commands, flags, names, secrets and
probes of their manifests.

A container runs under bubblewrap: a read-only root with the image's paths, the user of the manifest,
no capabilities, process 1 of its own namespace. What differs from a cluster: all pods share one
network, each with a loopback address of its own in place of its pod address, and service names come
from /etc/hosts.
"""
import base64
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import chart
import operation_tools

PROGRAMS = os.environ["MOEBIUS_PROGRAM_DIR"]
DEMO = os.path.join(operation_tools.SOURCE, "models", "demo")
# What the image has, and where it is here.
IMAGE = {"/usr/local/bin": PROGRAMS, "/opt/moebius/models/demo": DEMO}
USER = 65532
READY_SECONDS = 120
LISTEN = re.compile(r"^(--[a-z-]*listen=)(?:0\.0\.0\.0|127\.0\.0\.1)(:\d+)$")
VARIABLE = re.compile(r"\$\(([A-Z_]+)\)")


class Pod:
    """One pod: its manifest, its name and its address."""

    def __init__(self, name, address, labels, spec):
        self.name, self.address, self.labels, self.spec = name, address, labels, spec

    def environment(self, container):
        fields = {"metadata.name": self.name, "metadata.namespace": chart.NAMESPACE}
        return {entry["name"]: entry["value"] if "value" in entry else
                fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
                for entry in container.get("env", [])}

    def command(self, container):
        """Command and arguments as Kubernetes expands them; listening is on the pod's address."""
        variables = self.environment(container)
        words = [VARIABLE.sub(lambda match: variables[match[1]], word)
                 for word in [*container["command"], *container.get("args", [])]]
        return [LISTEN.sub(lambda match: match[1] + self.address + match[2], word) for word in words]


class Container:
    """A running container."""

    def __init__(self, pod, container, folder):
        self.pod, self.manifest = pod, container
        self.log = tempfile.TemporaryFile()
        self.out = tempfile.TemporaryFile()
        read_end, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                self._bwrap(folder, write_end) + pod.command(container), stdin=subprocess.DEVNULL,
                stdout=self.out, stderr=self.log, pass_fds=[write_end])
        finally:
            os.close(write_end)
        with os.fdopen(read_end, encoding="utf-8") as info:
            text = info.read()
        self.pid = json.loads(text)["child-pid"] if text else None

    def _bwrap(self, folder, info):
        words = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
                 "--hostname", self.pod.name, "--uid", str(USER), "--gid", str(USER),
                 "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1",
                 "--info-fd", str(info), "--clearenv", "--ro-bind", "/usr", "/usr",
                 "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
                 "--proc", "/proc", "--dev", "/dev",
                 "--ro-bind", os.path.join(folder, "etc"), "/etc"]
        for target, source in IMAGE.items():
            words += ["--ro-bind", source, target]
        for key, value in self.pod.environment(self.manifest).items():
            words += ["--setenv", key, value]
        volumes = {volume["name"]: volume for volume in self.pod.spec.get("volumes", [])}
        for mount in self.manifest.get("volumeMounts", []):
            secret = volumes[mount["name"]]["secret"]["secretName"]
            words += ["--ro-bind", os.path.join(folder, "secrets", secret), mount["mountPath"]]
        return [*words, "--remount-ro", "/"]

    def probe(self, kind):
        """Whether a probe of the manifest says yes, and what it says."""
        get = self.manifest[kind]["httpGet"]
        (port,) = [port["containerPort"] for port in self.manifest["ports"]
                   if port["name"] == get["port"]]
        try:
            with urllib.request.urlopen(f"http://{self.pod.address}:{port}{get['path']}",
                                        timeout=self.manifest[kind]["timeoutSeconds"]) as answer:
                return answer.status == 200, answer.read().decode()
        except urllib.error.HTTPError as error:
            return False, error.read().decode()
        except (urllib.error.URLError, OSError) as error:
            return False, str(error)

    def text(self, file):
        file.seek(0)
        return file.read().decode("utf-8", "replace")

    def describe(self):
        return (f"{self.pod.name}: {' '.join(self.pod.command(self.manifest))}\n"
                f"{self.text(self.out)}{self.text(self.log)}")

    def terminate(self):
        """As Kubernetes does: SIGTERM to process 1 of the container."""
        if self.process.poll() is None and self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.out.close()


class Cluster:
    """The pods of a rendering; all processes end with the block.

    `secrets` are those that the chart only names: {name: {key: text}}.
    """

    def __init__(self, objects, secrets=None):
        self.objects = objects
        self.secrets = secrets or {}
        self.folder = tempfile.TemporaryDirectory()
        self.pods, self.containers = [], []
        self._place_pods()
        self._write_secrets()
        self._write_etc()

    def _place_pods(self):
        for entry in chart.of_kind(self.objects, "StatefulSet"):
            template = entry["spec"]["template"]
            for ordinal in range(entry["spec"]["replicas"]):
                self._place(f"{entry['metadata']['name']}-{ordinal}", template["metadata"]["labels"],
                            template["spec"])
        (test,) = chart.of_kind(self.objects, "Pod")
        self.test = self._place(test["metadata"]["name"], test["metadata"]["labels"], test["spec"])

    def _place(self, name, labels, spec):
        # Addresses of this test alone: another checkout may run it at the same time.
        number = os.getpid()
        address = f"127.{64 + number % 128}.{number // 128 % 256}.{len(self.pods) + 1}"
        pod = Pod(name, address, labels, spec)
        self.pods.append(pod)
        return pod

    def _write_secrets(self):
        for entry in chart.of_kind(self.objects, "Secret"):
            folder = os.path.join(self.folder.name, "secrets", entry["metadata"]["name"])
            os.makedirs(folder)
            for key, text in entry["data"].items():
                with open(os.path.join(folder, key), "wb") as file:
                    file.write(base64.b64decode(text))
        for name, content in self.secrets.items():
            self.write_secret(name, content)

    def write_secret(self, name, content):
        """As the kubelet does: whoever reads sees the old file or the new one."""
        folder = os.path.join(self.folder.name, "secrets", name)
        os.makedirs(folder, exist_ok=True)
        for key, text in content.items():
            fresh = os.path.join(folder, f".{key}")
            with open(fresh, "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(fresh, os.path.join(folder, key))

    def _write_etc(self):
        """Names as the cluster's DNS would give them."""
        lines = ["127.0.0.1 localhost"]
        for service in chart.of_kind(self.objects, "Service"):
            host = f"{service['metadata']['name']}.{chart.NAMESPACE}.svc"
            for pod in self.pods:
                if not chart.selects({"matchLabels": service["spec"]["selector"]}, pod.labels):
                    continue
                lines.append(f"{pod.address} {host}")
                if service["spec"].get("clusterIP") == "None":
                    lines.append(f"{pod.address} {pod.name}.{host}")
        etc = os.path.join(self.folder.name, "etc")
        for pod in self.pods:
            for container in chart.containers(pod.spec):
                for mount in container.get("volumeMounts", []):
                    os.makedirs(os.path.join(self.folder.name, mount["mountPath"].lstrip("/")),
                                exist_ok=True)
        os.makedirs(etc, exist_ok=True)
        for name, text in (("hosts", "\n".join(lines) + "\n"), ("resolv.conf", ""),
                           ("nsswitch.conf", "hosts: files\n"),
                           ("passwd", f"moebius:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n")):
            with open(os.path.join(etc, name), "w", encoding="utf-8") as file:
                file.write(text)

    def __enter__(self):
        for pod in self.pods:
            if pod is not self.test:
                for container in pod.spec["containers"]:
                    self.start(pod, container)
        return self

    def start(self, pod, container):
        self.containers.append(Container(pod, container, self.folder.name))
        return self.containers[-1]

    def services(self):
        return [container for container in self.containers if container.pod is not self.test]

    def wait_until_ready(self):
        """Returns when every service is started, live and ready; fails when one ends before."""
        end = time.monotonic() + READY_SECONDS
        waiting = {container: "" for container in self.services()}
        while waiting:
            for container in list(waiting):
                if container.process.poll() is not None:
                    raise AssertionError(f"ended with {container.process.returncode}: "
                                         f"{container.describe()}")
                for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                    good, waiting[container] = container.probe(kind)
                    if not good:
                        break
                else:
                    del waiting[container]
            if time.monotonic() > end:
                raise AssertionError("\n".join(f"{why}\n{container.describe()}"
                                               for container, why in waiting.items()))
            time.sleep(0.05)

    def run_test_hook(self):
        """The pod of `helm test`: its containers one after another. The last one's output."""
        for manifest in chart.containers(self.test.spec):
            container = self.start(self.test, manifest)
            if container.process.wait(READY_SECONDS) != 0:
                raise AssertionError(container.describe())
        return container.text(container.out)

    def restart(self, container, seconds):
        """A pod of a StatefulSet is replaced by one of its name; how the old one ended."""
        container.terminate()
        code = container.process.wait(seconds)
        container.close()
        self.containers.remove(container)
        self.start(container.pod, container.manifest)
        return code

    def stop(self, seconds):
        """SIGTERM to all; {pod: exit code}."""
        for container in self.services():
            container.terminate()
        return {container.pod.name: container.process.wait(seconds)
                for container in self.services()}

    def __exit__(self, *_):
        for container in self.containers:
            container.close()
        self.folder.cleanup()
