# SPDX-License-Identifier: Apache-2.0
"""Alerts that a real Prometheus fires for what happens to a real cluster, and takes back after it.

The deployed rules with shorter durations and nothing else changed: minutes pass in seconds."""
import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import operation_tools

operation_tools.enter()

# pylint: disable=wrong-import-position
import expressions  # noqa: E402
import served  # noqa: E402
import yaml  # noqa: E402

# How much shorter a `for` and a window are. Windows are longer than a busy machine's hiccups.
FOR_HASTE = 120
WINDOW_HASTE = 30
# Generous: a busy machine is slow, and a fault does not heal by waiting.
WAIT_SECONDS = 150
UNITS = {"s": 1, "m": 60, "h": 3600}
DURATION = re.compile(r"(\d+)([smh])")
# What must not be older than so many seconds.
AGE = re.compile(r"(?<=time\(\) - )(\w+ > )(\d+)")
# One address may have 512 connections of a public port.
TOO_MANY_CONNECTIONS = 520
SPARE_DESCRIPTORS = 4
# A loop that goes on is seen to within that time.
LOOK_SECONDS = 1
LOOP = re.compile(r'^moebius_background_loop_last_success_timestamp_seconds{loop="reactor"} (.*)$',
                  re.MULTILINE)
PEERS = re.compile(r'^moebius_transport_peers{.*state="connected".*} (.*)$', re.MULTILINE)
# Alerts that nothing here fires, and why: rules_test.py fires them with series that are made up.
NOT_BROUGHT_ABOUT = {
    "MoebiusUnauthenticatedPeers": "needs peers of other hosts: on loopback addresses nobody counts",
    "MoebiusFirstTokenSlow": "first tokens would have to take ten real seconds",
    "MoebiusTokensSlow": "tokens would have to take a real second each",
    "MoebiusNoProgress": "a router that answers scrapes and steps no more is a defect",
    "MoebiusStepsRetried": "needs a service that fails in one step of twenty, and goes on",
    "MoebiusNonFiniteOutput": "needs a cluster of its own, with damaged weights",
    "MoebiusTokenConservationBroken": "only a defect of the router counts here",
    "MoebiusExpertImbalance": "needs prompts that all meet one expert",
    "MoebiusServiceImbalance": "two services that hold all experts share the rows evenly",
    "MoebiusExpertsNotHeld": "only a router and a service that disagree, a defect, count here",
    "MoebiusKvCacheAlmostFull": "needs a cluster of its own, with a small --kv-budget",
    "MoebiusWorkRecomputed": "needs a service that fails in one row of a hundred, and goes on",
    "MoebiusMetricsErrors": "only figures that cannot be true, or a huge model, count here",
}


def shortened(duration, haste):
    count, unit = DURATION.fullmatch(duration).groups()
    return f"{int(count) * UNITS[unit] * 1000 // haste}ms"


def hasten(rule):
    """The rule with its `for`, its windows and its ages shortened."""
    expr = re.sub(r"\[(\d+[smh])\]",
                  lambda match: f"[{shortened(match[1], WINDOW_HASTE)}]", rule["expr"])
    expr = AGE.sub(lambda match: match[1] + str(int(match[2]) // WINDOW_HASTE), expr)
    changed = {**rule, "expr": expr}
    if "for" in rule:
        changed["for"] = shortened(rule["for"], FOR_HASTE)
    return changed


def hastened_rules(folder):
    paths = []
    for path in expressions.RULE_FILES:
        with open(path, encoding="utf-8") as file:
            rules = yaml.safe_load(file)
        for group in rules["groups"]:
            group.pop("interval", None)
            group["rules"] = [hasten(rule) for rule in group["rules"]]
        paths.append(os.path.join(folder, "hastened-" + os.path.basename(path)))
        with open(paths[-1], "w", encoding="utf-8") as file:
            yaml.safe_dump(rules, file)
    return paths


class Loop:
    """Calls `act` again and again on a thread, until the block ends."""

    def __init__(self, act):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(act,))

    def _run(self, act):
        while not self.ended.wait(0.05):
            act()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


@contextlib.contextmanager
def stopped_processes(pids):
    """They stand still, as on a host that freezes."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def descriptors_of(pid, soft):
    """A process with another soft limit of file descriptors."""
    former = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, former[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, former)


def room_for_connections():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return descriptors_of(os.getpid(), hard)


def fewer_descriptors(pid):
    return descriptors_of(pid, len(os.listdir(f"/proc/{pid}/fd")) + SPARE_DESCRIPTORS)


def metrics_of(process, seconds=WAIT_SECONDS):
    with urllib.request.urlopen(process["metrics"], timeout=seconds) as answer:
        return answer.read().decode()


def age_of_loop(process):
    try:
        return time.time() - float(LOOP.search(metrics_of(process, LOOK_SECONDS))[1])
    except OSError:
        # The thread that answers is the one that stands still.
        return 0


def loop_thread_of(process):
    """The thread that the process's loop lives on: while it stands still the loop gets older."""
    folder = f"/proc/{process['pid']}/task"
    # Those that gRPC starts have names of their own.
    for thread in sorted(map(int, os.listdir(folder)), reverse=True):
        with open(f"{folder}/{thread}/comm", encoding="utf-8") as file:
            if not file.read().startswith("moebius"):
                continue
        with StoppedThread(thread):
            # Two looks: what has work at both and did nothing stands still since the first.
            for _ in range(2):
                time.sleep(LOOK_SECONDS)
                age = age_of_loop(process)
            if age > LOOK_SECONDS / 2:
                return thread
    raise AssertionError(f"no thread of {process['name']} keeps its loop going")


class StoppedThread:
    """One thread of a process stands still while the others go on, as one that hangs does."""

    SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
    WAIT_FOR_ANY = 0x40000000

    def __init__(self, thread):
        self.thread = thread

    def __enter__(self):
        self._trace(self.SEIZE)
        self._trace(self.INTERRUPT)
        os.waitpid(self.thread, self.WAIT_FOR_ANY)
        return self

    def __exit__(self, *_):
        self._trace(self.DETACH)

    def _trace(self, request):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        if libc.ptrace(request, self.thread, None, None) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"ptrace of thread {self.thread}: {os.strerror(error)}")


class Expert:
    """One more expert service, of a fixed metrics port; it can be started again and again."""

    def __init__(self, name, *flags):
        self.name = name
        self.address = f"127.0.0.1:{served.free_port()}"
        self.flags = flags
        self.process = None

    def target(self):
        return {"targets": [self.address],
                "labels": {"namespace": "test", "model": "demo", "role": "expert",
                           "pod": f"demo-{self.name}"}}

    def start(self, *flags, log=subprocess.DEVNULL):
        self.process = subprocess.Popen(
            [os.path.join(served.PROGRAMS, "moebius-expert"), "--model", served.DEMO, "--name",
             self.name, "--threads=1", "--admin-listen=", f"--http-listen={self.address}",
             "--transport=grpc", *self.flags, *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def start_again(self, *flags, log=subprocess.DEVNULL):
        self.kill()
        self.start(*flags, log=log)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()


class FiringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        certs = os.path.join(folder, "certs")
        served.make_certificates(certs, "--days", "2")
        # An expert takes no more than its even share of a step's rows: prompts lose assignments.
        cls.cluster = cls.enterClassContext(served.Cluster(
            folder, "--experts", "2", "--capacity-factor", "1", "--transport", "grpc", certs=certs))
        expert = cls.cluster.flags_of("expert")
        cls.spare = cls.enterClassContext(
            Expert("spare", "--join", cls.cluster.ready["join"], *expert))
        # It dials where nobody is, so nobody refuses it.
        cls.stray = cls.enterClassContext(
            Expert("stray", "--join", f"127.0.0.1:{served.free_port()}", *expert))
        targets = [*cls.cluster.targets(), cls.spare.target(), cls.stray.target()]
        cls.prometheus = cls.enterClassContext(
            served.Prometheus(folder, targets, hastened_rules(folder)))
        if not served.wait_until(cls.prometheus.is_ready, WAIT_SECONDS):
            raise AssertionError(cls.prometheus.output())

    def firing(self):
        return {alert["labels"]["alertname"]
                for alert in self.prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def assert_fires(self, *names):
        fired = set()

        def all_have_fired():
            fired.update(self.firing())
            return fired.issuperset(names)
        served.wait_until(all_have_fired, WAIT_SECONDS)
        self.assertEqual(set(names) - fired, set(), self.cluster.output())

    def assert_ends(self, *names):
        still_firing = set(names)

        def all_have_ended():
            still_firing.intersection_update(self.firing())
            return not still_firing
        served.wait_until(all_have_ended, WAIT_SECONDS)
        self.assertEqual(still_firing, set(), self.cluster.output())

    def data_port(self):
        host, port = self.cluster.ready["join"].rsplit(":", 1)
        return host, int(port)

    def wait_until_answering(self):
        self.assertTrue(served.wait_until(
            lambda: self.cluster.generate("--prompt-ids", "5", "--max-tokens", "1").returncode == 0,
            WAIT_SECONDS))

    def test_nothing_but_durations_is_changed(self):
        rule = {"alert": "A", "for": "10m",
                "expr": "increase(x_5m[10m]) > 300 * time() or time() - x_5m > 300"}
        self.assertEqual(hasten(rule), {"alert": "A", "for": "5000ms",
                                        "expr": "increase(x_5m[20000ms]) > 300 * time() or "
                                                "time() - x_5m > 10"})
        self.assertEqual(hasten({"record": "r", "expr": "x"}), {"record": "r", "expr": "x"})

    def test_every_alert_is_fired_or_has_a_reason_why_not(self):
        with open(expressions.RULE_FILES[1], encoding="utf-8") as file:
            alerts = {rule["alert"] for group in yaml.safe_load(file)["groups"]
                      for rule in group["rules"]}
        with open(__file__, encoding="utf-8") as file:
            named = set(re.findall(r'"(Moebius\w+)"', file.read()))
        self.assertEqual(named, alerts)

    def test_alerts_fire_for_what_happens_and_end_when_it_is_over(self):
        happened = [self.lose_assignments_and_miss_deadlines(), self.let_certificates_end(),
                    self.come_and_go(), self.freeze_the_experts(), self.knock_at_the_data_port(),
                    self.crowd_a_port_and_lower_a_limit(), self.hang_a_thread(),
                    self.freeze_the_router()]
        self.wait_until_answering()
        self.assert_ends(*[name for names in happened for name in names])

    def let_certificates_end(self):
        names = ["MoebiusCertificateEnds"]
        self.assert_fires(*names)
        served.make_certificates(self.cluster.certs, "--days", "90", "--keep-ca")
        return names

    def come_and_go(self):
        """Services freeze for a moment, again and again; one is killed and has another
        configuration beside it; one cannot write its log."""
        everybody = self.cluster.pids("attention-0", "expert-0", "expert-1")

        def wait_for_peers(least, most):
            served.wait_until(lambda: least <= self.number_of_peers() <= most, WAIT_SECONDS)

        def freeze_for_a_moment():
            with stopped_processes(everybody):
                wait_for_peers(0, 1)
            wait_for_peers(len(everybody), len(everybody) + 1)

        def start_again():
            before = self.spare_started()
            with open("/dev/full", "wb") as full:
                self.spare.start_again(log=full)
            served.wait_until(lambda: self.spare_started() not in ("", before), WAIT_SECONDS)
        names = ["MoebiusPeersUnsteady", "MoebiusRestarts", "MoebiusLogLinesLost",
                 "MoebiusMixedConfigurations"]
        self.stray.start_again("--span", "64")
        with self.again_and_again(freeze_for_a_moment, start_again):
            self.assert_fires(*names)
        self.stray.start_again()
        self.wait_until_answering()
        return names

    def number_of_peers(self):
        """That the router counts as connected."""
        page = metrics_of(self.cluster.ready["processes"][0])
        return sum(int(float(value)) for value in PEERS.findall(page))

    def spare_started(self):
        values = self.prometheus.values('process_start_time_seconds{pod="demo-spare"}')
        return values[0]["value"][1] if values else ""

    def crowd_a_port_and_lower_a_limit(self):
        host, port = self.cluster.ready["router"].rsplit(":", 1)
        (attention,) = self.cluster.pids("attention-0")
        names = ["MoebiusConnectionsRefused", "MoebiusFilesRunOut"]
        with contextlib.ExitStack() as connections, room_for_connections(), \
                fewer_descriptors(attention):
            for _ in range(TOO_MANY_CONNECTIONS):
                connections.enter_context(socket.create_connection((host, int(port)), timeout=30))
            self.assert_fires(*names)
        return names

    def hang_a_thread(self):
        names = ["MoebiusBackgroundLoopStalled"]
        process = next(process for process in self.cluster.ready["processes"]
                       if process["name"] == "expert-1")
        with StoppedThread(loop_thread_of(process)):
            self.assert_fires(*names)
        return names

    def lose_assignments_and_miss_deadlines(self):
        def lose_assignments():
            self.cluster.generate("--prompt", "And the king said unto them, Go ye into the city",
                                  "--max-tokens", "2")

        def miss_the_deadline():
            self.cluster.generate("--prompt-ids", "5,6", "--max-tokens", "4000", "--ignore-eos",
                                  "--deadline", "100ms")
        names = ["MoebiusDegradedResponses", "MoebiusTokensDropped", "MoebiusHighErrorRate"]
        with self.again_and_again(lose_assignments, miss_the_deadline):
            self.assert_fires(*names)
            # What is empty where no capacity is set.
            self.assertTrue(self.prometheus.values(
                "moebius:assignments_dropped:ratio_rate5m > 0 and on (namespace, model) "
                "moebius_expert_assignments_dropped_total"))
        return names

    def freeze_the_experts(self):
        def ask():
            self.cluster.generate("--prompt-ids", "5", "--max-tokens", "1")
        names = ["MoebiusExpertUnavailable", "MoebiusExpertUnderReplicated", "MoebiusNotReady",
                 "MoebiusTargetDown", "MoebiusTransportPeerDead", "MoebiusRequestsRejected"]
        # Several ask, as a request that is refused is tried again for a while.
        # The spare too: it would take the place of one.
        experts = [*self.cluster.pids("expert-0", "expert-1"), self.spare.process.pid]
        with stopped_processes(experts), self.again_and_again(ask, ask, ask):
            self.assert_fires(*names)
        self.wait_until_answering()
        return names

    def knock_at_the_data_port(self):
        join = "{}:{}".format(*self.data_port())

        def knock():
            socket.create_connection(self.data_port(), timeout=10).close()

        def join_with_another_configuration():
            operation_tools.run(
                os.path.join(served.PROGRAMS, "moebius-expert"), "--model", served.DEMO, "--join",
                join, "--span", "64", "--http-listen=", "--admin-listen=", "--transport", "grpc",
                *self.cluster.flags_of("expert"))
        names = ["MoebiusTransportErrors", "MoebiusJoinsRefused"]
        with self.again_and_again(knock, join_with_another_configuration):
            self.assert_fires(*names)
        return names

    def freeze_the_router(self):
        names = ["MoebiusRouterDown", "MoebiusMetricsAbsent"]
        with stopped_processes(self.cluster.pids("router")):
            self.assert_fires(*names)
        return names

    @contextlib.contextmanager
    def again_and_again(self, *acts):
        with contextlib.ExitStack() as loops:
            for act in acts:
                loops.enter_context(Loop(act))
            yield


if __name__ == "__main__":
    unittest.main()
