# SPDX-License-Identifier: Apache-2.0
"""Containers for tests: the images of the checkout, in a store and a network of the test's own.

A script calls `check_host`, which ends it as a skip where containers cannot run, then `enter`: it
goes on in network and mount namespaces of its own, so that what podman does to interfaces and
packet filters is gone with them.
"""
import os
import resource
import shutil
import subprocess
import sys

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
STORE = os.path.join(os.environ["MOEBIUS_BINARY_DIR"], "container-store")
BUILD = os.path.join(SOURCE, "deploy", "images", "build.sh")
PROGRAMS = ("buildah", "podman", "runc", "debootstrap", "ip")
ENTERED = "MOEBIUS_TEST_IN_NAMESPACES"
SKIPPED = 77
SECONDS = 600
# What a container may have at most; podman asks for more than a host may give.
LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 20000), "nproc": (resource.RLIMIT_NPROC, 4096)}


def skip(reason):
    print(f"MOEBIUS_SKIP: {reason}")
    sys.exit(SKIPPED)


def check_host():
    for program in PROGRAMS:
        if shutil.which(program) is None:
            skip(f"{program} is not on this machine")
    if os.geteuid() != 0:
        skip("needs to be root to run containers")
    if run("unshare", "-nm", "true").returncode != 0:
        skip("this host lets nobody make namespaces")


def enter(prepare):
    """`prepare` is called once, before: the namespaces reach nothing outside them."""
    if ENTERED in os.environ:
        run("ip", "link", "set", "lo", "up")
        return
    prepare()
    sys.stdout.flush()
    os.execvpe("unshare", ["unshare", "-nm", "--propagation", "private", sys.executable, *sys.argv],
               {**os.environ, ENTERED: "1"})


def run(*command, environment=None):
    """The finished process, its output as text; never fails by itself."""
    return subprocess.run(list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, env=environment, cwd=SOURCE, timeout=SECONDS,
                          check=False)


def _write(name, text):
    path = os.path.join(STORE, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


class Containers:
    """buildah and podman with files of their own, apart from those of the host's user."""

    def __init__(self):
        os.makedirs(os.path.join(STORE, "networks"), exist_ok=True)
        limits = []
        for name, (which, most) in LIMITS.items():
            hard = resource.getrlimit(which)[1]
            value = most if hard == resource.RLIM_INFINITY else min(hard, most)
            limits.append(f'"{name}={value}:{value}"')
        # The names of sockets have to be short; a build tree's path may be long.
        self.run_root = f"/run/moebius-test-{os.getpid()}"
        containers = _write("containers.conf", f"""[containers]
default_ulimits = [{", ".join(limits)}]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_config_dir = "{STORE}/networks"
""")
        self.environment = {**os.environ, "CONTAINERS_CONF": containers, "BUILDAH_ISOLATION": "chroot"}
        for driver in ("overlay", "vfs"):
            self.environment["CONTAINERS_STORAGE_CONF"] = _write(
                f"storage-{driver}.conf", f'[storage]\ndriver = "{driver}"\n'
                f'graphroot = "{STORE}/{driver}"\nrunroot = "{self.run_root}"\n')
            if self.run("buildah", "info").returncode == 0:
                break

    def run(self, *command):
        return run(*command, environment=self.environment)

    def check(self, *command):
        """The output of a command that has to succeed."""
        done = self.run(*command)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def close(self):
        self.run("podman", "rm", "--all", "--force", "--time", "0")
        self.run("podman", "network", "prune", "--force")
        shutil.rmtree(self.run_root, ignore_errors=True)
