# SPDX-License-Identifier: Apache-2.0
"""`moebius serve`: real processes on free ports, and what becomes of them."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import programs

READY_SECONDS = 120
END_SECONDS = 30


def exists(pid):
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Served:
    """A running `moebius serve --json`, of the demo model where nothing is said."""

    def __init__(self, *flags, model=programs.DEMO):
        self.folder = tempfile.TemporaryDirectory()
        self.errors = open(os.path.join(self.folder.name, "stderr"), "wb")
        self.process = subprocess.Popen(
            [programs.MOEBIUS, "serve", "--model", model, "--json", "--log-dir",
             os.path.join(self.folder.name, "logs"), *flags],
            stdout=subprocess.PIPE, stderr=self.errors, stdin=subprocess.DEVNULL)

    def event(self):
        """The next line; the reader's patience is the test's own."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no more events: {self.stderr()}")
        return json.loads(line)

    def stderr(self):
        with open(self.errors.name, encoding="utf-8") as file:
            return file.read()

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.folder.cleanup()


def metrics_of(process):
    with urllib.request.urlopen(process["metrics"], timeout=20) as answer:
        lines = answer.read().decode("utf-8").splitlines()
    return {name: float(value) for name, value in
            (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


class ServeTest(unittest.TestCase):
    def serve(self, *flags):
        served = Served(*flags)
        self.addCleanup(served.close)
        return served

    def test_starts_what_was_asked_for_and_stops_all_on_ctrl_c(self):
        served = self.serve("--experts", "2", "--attention", "2")
        ready = served.event()
        self.assertEqual(ready["event"], "ready", ready)
        self.assertEqual([p["name"] for p in ready["processes"]],
                         ["router", "attention-0", "attention-1", "expert-0", "expert-1"])
        with urllib.request.urlopen(ready["status"], timeout=10) as page:
            self.assertEqual(page.headers["Content-Type"], "text/html; charset=utf-8")
            text = page.read().decode("utf-8")
        for process in ready["processes"]:
            self.assertIn(f"<td>{process['name']}</td>", text)
        for process in ready["processes"]:
            self.assertTrue(exists(process["pid"]), process)
            self.assertTrue(process["metrics"].endswith("/metrics"), process)
            for probe in ("livez", "readyz", "startupz"):
                url = process["metrics"].rsplit("/", 1)[0] + "/" + probe
                with urllib.request.urlopen(url, timeout=10) as answer:
                    self.assertEqual(answer.status, 200, f"{process['name']} {probe}")
        begin = time.monotonic()
        self.assertEqual(served.stop(), 0, served.stderr())
        self.assertLess(time.monotonic() - begin, 10)
        for process in ready["processes"]:
            self.assertFalse(exists(process["pid"]), process)
        self.assertIn("5 of 5 left exited 0", served.stderr())

    def test_another_expert_joins_where_it_says_and_stands_by(self):
        served = self.serve("--experts", "1", "--listen", "127.0.0.1:0")
        expert = programs.Service("expert", "--join", served.event()["join"])
        self.addCleanup(expert.close)
        self.assertTrue(programs.wait_until(lambda: "waiting as a spare" in expert.stderr(), 20),
                        expert.stderr())
        self.assertEqual(served.stop(), 0, served.stderr())
        beyond = programs.run(programs.MOEBIUS, "serve", "--model", programs.DEMO, "--listen",
                              "0.0.0.0:0")
        self.assertEqual(beyond.code, 3, str(beyond))
        self.assertIn("--insecure", beyond.err)

    def test_tells_of_a_child_that_was_killed_and_goes_on(self):
        served = self.serve("--experts", "2")
        ready = served.event()
        victim = next(p for p in ready["processes"] if p["name"] == "expert-1")
        router = next(p for p in ready["processes"] if p["name"] == "router")
        begin = time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)
        ended = served.event()
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual((ended["event"], ended["name"], ended["pid"]),
                         ("ended", "expert-1", victim["pid"]))
        self.assertEqual((ended["exit_code"], ended["signal"]), (None, int(signal.SIGKILL)))
        self.assertIn("SIGKILL", ended["message"])
        # Readiness is truthful: every expert has another replica, until the last one is gone.
        url = router["metrics"].rsplit("/", 1)[0] + "/readyz"
        with urllib.request.urlopen(url, timeout=10) as answer:
            self.assertEqual(answer.status, 200)
        last = next(p for p in ready["processes"] if p["name"] == "expert-0")
        os.kill(last["pid"], signal.SIGKILL)
        self.assertEqual(served.event()["name"], "expert-0")

        def names_the_missing():
            try:
                with urllib.request.urlopen(url, timeout=10):
                    return False
            except urllib.error.HTTPError as error:
                body = error.read().decode()
                return "expert slot 0 of 2" in body and "expert slot 1 of 2" in body
        self.assertTrue(programs.wait_until(names_the_missing, 10))
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_restarts_only_when_asked(self):
        served = self.serve("--experts", "2", "--restart")
        ready = served.event()
        victim = next(p for p in ready["processes"] if p["name"] == "expert-0")
        os.kill(victim["pid"], signal.SIGKILL)
        self.assertEqual(served.event()["event"], "ended")
        again = served.event()
        self.assertEqual((again["event"], again["name"]), ("ready", "expert-0"))
        self.assertNotEqual(again["pid"], victim["pid"])
        self.assertTrue(exists(again["pid"]))
        # Who scrapes it, and who drains it, finds it where it was.
        with urllib.request.urlopen(victim["metrics"], timeout=20) as page:
            self.assertIn("moebius_build_info{", page.read().decode())
        drained = programs.run(programs.MOEBIUS, "drain", "--expert", victim["endpoint"])
        self.assertEqual(drained.code, 0, str(drained))
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_a_restart_whose_port_has_been_taken_gets_another(self):
        served = self.serve("--experts", "2", "--restart")
        ready = served.event()
        victim = next(p for p in ready["processes"] if p["name"] == "expert-1")
        host, port = re.match(r"http://([^:/]+):(\d+)", victim["metrics"]).groups()
        os.kill(victim["pid"], signal.SIGKILL)
        self.assertEqual(served.event()["event"], "ended")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind((host, int(port)))
            other.listen()
            ended, again = served.event(), served.event()
            self.assertEqual((ended["event"], ended["name"]), ("ended", "expert-1"), ended)
            self.assertIn(port, ended["message"])
            self.assertEqual((again["event"], again["name"]), ("ready", "expert-1"), again)
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_an_expert_that_drains_costs_no_bit_and_is_not_asked_again(self):
        served = self.serve("--experts", "2")
        ready = served.event()
        expert = next(p for p in ready["processes"] if p["name"] == "expert-1")
        drained = programs.run(programs.MOEBIUS, "drain", "--expert", expert["endpoint"], "--json")
        self.assertEqual(drained.code, 0, str(drained))
        self.assertTrue(drained.json()["drained"])

        def router_knows():
            status = programs.run(programs.MOEBIUS, "status", "--router", ready["router"], "--json")
            return any(s["name"] == "expert-1" and "draining" in json.dumps(s)
                       for s in status.json()["services"])

        self.assertTrue(programs.wait_until(router_knows, 20))
        ask = ("--prompt-ids", "256,65", "--max-tokens", "16")
        answer = programs.run(programs.MOEBIUS, "generate", "--router", ready["router"], "--json",
                              "--temperature", "0", *ask)
        self.assertEqual(answer.code, 0, str(answer))
        self.assertEqual(answer.json()["logits_hash"], programs.generate(*ask)["logits_hash"])
        self.assertEqual(answer.json()["timing"]["resends"], 0)
        top = programs.run(programs.MOEBIUS, "top", "--router", ready["router"], "--interval",
                           "100ms", "--count", "2", "--json")
        self.assertEqual(top.code, 0, str(top))
        frames = [json.loads(line) for line in top.out.splitlines()]
        self.assertEqual(len(frames), 2, str(top))
        self.assertEqual(frames[1]["generated_tokens_total"], 16)
        self.assertEqual(frames[1]["dropped_total"], 0)
        log = os.path.join(served.folder.name, "logs", "router.log")

        def is_logged():
            with open(log, encoding="utf-8") as file:
                return any("a request was answered" in line and answer.json()["request_id"] in line
                           for line in file)

        self.assertTrue(programs.wait_until(is_logged, 10))
        self.assertEqual(served.stop(), 0, served.stderr())

    def drain_in_an_answer(self, served, ready, name, refusal, while_it_drains=lambda: None):
        """SIGTERM to a process while an answer comes: others are refused with these words, the
        answer goes on to its end, then the process ends."""
        process = next(p for p in ready["processes"] if p["name"] == name)
        ask = ("--prompt-ids", "256,65", "--ignore-eos", "--temperature", "0")
        generate = [programs.MOEBIUS, "generate", "--router", ready["router"], *ask]
        expected = programs.generate(*ask[:3], "--max-tokens", "2000")
        # Unbuffered: what a buffer holds is lost to communicate.
        with subprocess.Popen([*generate, "--max-tokens", "2000"], bufsize=0,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as begun:
            begin = begun.stdout.read(1)
            os.kill(process["pid"], signal.SIGTERM)

            def takes_no_more():
                late = programs.run(*generate, "--max-tokens", "1", "--json")
                return late.code != 0 and refusal in late.err

            self.assertTrue(programs.wait_until(takes_no_more, 20))
            self.assertIsNone(begun.poll(), "nobody saw the draining")
            while_it_drains()
            rest, errors = begun.communicate(timeout=120)
        self.assertEqual(begun.returncode, 0, errors)
        self.assertIn(expected["logits_hash"], errors.decode())
        self.assertIn(expected["text"], (begin + rest).decode("utf-8", "replace"))
        ended = served.event()
        self.assertEqual((ended["event"], ended["name"], ended["exit_code"]), ("ended", name, 0))

    def test_a_rank_that_drains_ends_what_has_keys_there_and_takes_no_more(self):
        served = self.serve("--attention", "2")
        ready = served.event()

        def expect_it_is_said():
            status = programs.run(programs.MOEBIUS, "status", "--router", ready["router"], "--json")
            states = {s["name"]: s["state"] for s in status.json()["services"]}
            self.assertEqual(states["attention-1"], "draining", str(status))

        self.drain_in_an_answer(served, ready, "attention-1", "attention-1): draining",
                                expect_it_is_said)

    def test_rows_that_a_lost_rank_takes_with_it_are_counted_as_run_again(self):
        served = self.serve("--attention", "2", "--restart")
        ready = served.event()
        rank = next(p for p in ready["processes"] if p["name"] == "attention-1")
        router = next(p for p in ready["processes"] if p["name"] == "router")
        ask = ("--prompt-ids", "256,65", "--ignore-eos", "--max-tokens", "1500")
        expected = programs.generate(*ask)
        with subprocess.Popen([programs.MOEBIUS, "generate", "--router", ready["router"], "--json",
                               "--temperature", "0", *ask], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as begun:
            self.assertTrue(programs.wait_until(
                lambda: metrics_of(router)["moebius_generated_tokens_total"] > 50, 20))
            os.kill(rank["pid"], signal.SIGKILL)
            out, errors = begun.communicate(timeout=120)
        self.assertEqual(begun.returncode, 0, errors)
        self.assertEqual(json.loads(out)["logits_hash"], expected["logits_hash"])
        counted = metrics_of(router)
        again = counted['moebius_recomputed_total{what="kv_rows"}']
        self.assertGreater(again, 50)
        # Prompt and answer but for its last token, and what was run again.
        self.assertEqual(counted["moebius_step_rows_total"], 2 + 1500 - 1 + again)

    def test_a_router_that_drains_ends_what_it_began_and_takes_no_more(self):
        served = self.serve("--experts", "2")
        self.drain_in_an_answer(served, served.event(), "router", "drains")

    def test_a_router_that_is_lost_in_an_answer_is_told_so(self):
        served = self.serve("--experts", "1")
        ready = served.event()
        router = next(p for p in ready["processes"] if p["name"] == "router")
        ask = [programs.MOEBIUS, "generate", "--router", ready["router"], "--prompt-ids", "256,65",
               "--ignore-eos", "--max-tokens", "4000"]
        with subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as begun:
            begun.stdout.read(1)
            os.kill(router["pid"], signal.SIGKILL)
            _, errors = begun.communicate(timeout=60)
        self.assertEqual(begun.returncode, 1, errors)
        self.assertIn("in the middle of an answer", errors.decode())
        self.assertEqual(served.event()["name"], "router")
        self.assertEqual(served.process.wait(END_SECONDS), 1, served.stderr())
        self.assertIn("nothing can be served without it", served.stderr())

    def test_a_rank_that_can_never_hold_kv_ends_it_with_the_reason(self):
        done = programs.run(programs.MOEBIUS, "serve", "--model", programs.DEMO, "--json",
                            "--kv-budget", "1")
        self.assertEqual(done.code, 3, str(done))
        ended = json.loads(done.out.splitlines()[0])
        self.assertEqual((ended["event"], ended["name"], ended["exit_code"]),
                         ("ended", "attention-0", 3))
        self.assertIn("a KV budget of 1 bytes holds no block", ended["message"])
        self.assertIn("moebius serve divides", ended["message"])

    def test_a_request_asked_twice_runs_once_and_outlives_its_first_caller(self):
        served = self.serve("--experts", "2")
        ready = served.event()
        length = ("--prompt-ids", "256,65", "--ignore-eos", "--max-tokens", "2000")
        ask = [programs.MOEBIUS, "generate", "--router", ready["router"], "--temperature", "0",
               "--request-id", "twice", *length]
        expected = programs.generate(*length)
        with subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
            first.stdout.read(1)
            # Unbuffered: what a buffer holds is lost to communicate.
            with subprocess.Popen(ask, bufsize=0, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as second:
                begin = second.stdout.read(1)
                other = programs.run(programs.MOEBIUS, "generate", "--router", ready["router"],
                                     "--request-id", "twice", "--prompt-ids", "256,66")
                self.assertIn("is running and asks otherwise", other.err)
                self.assertIsNone(first.poll(), "it had ended before the second one asked")
                first.kill()
                rest, errors = second.communicate(timeout=120)
        self.assertEqual(second.returncode, 0, errors)
        self.assertIn(expected["logits_hash"], errors.decode())
        self.assertIn(expected["text"], (begin + rest).decode("utf-8", "replace"))
        again = programs.run(*ask)
        self.assertIn("has been used and has ended", again.err)
        self.assertEqual(served.stop(), 0, served.stderr())

    def test_leaves_no_child_when_it_is_killed_itself(self):
        served = self.serve("--experts", "2")
        pids = [p["pid"] for p in served.event()["processes"]]
        served.stop(signal.SIGKILL)
        self.assertTrue(programs.wait_until(lambda: not any(exists(pid) for pid in pids), 5))

    def test_a_model_that_is_not_there_ends_it_with_the_reason(self):
        done = programs.run(programs.MOEBIUS, "serve", "--model", "/nowhere", "--json")
        self.assertEqual(done.code, 4, str(done))
        ended = json.loads(done.out.splitlines()[0])
        self.assertEqual((ended["event"], ended["name"], ended["exit_code"]),
                         ("ended", "router", 4))
        self.assertIn("/nowhere", ended["message"])


class ServiceProgramsTest(unittest.TestCase):
    ROUTER = os.path.join(programs.PROGRAMS, "moebius-router")
    EXPERT = os.path.join(programs.PROGRAMS, "moebius-expert")
    # Its default ports are one router's on a host, and other tests run beside this one.
    ALONE = ("--grpc-listen=127.0.0.1:0", "--admin-listen=", "--http-listen=")

    def test_the_printed_configuration_reads_back(self):
        flags = ("--model", programs.DEMO, "--experts", "3", "--listen", "127.0.0.1:0")
        printed = programs.run(self.ROUTER, *flags, "--print-config")
        self.assertEqual(printed.code, 0, str(printed))
        self.assertEqual(printed.json()["experts"], 3)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(printed.out)
            file.flush()
            again = programs.run(self.ROUTER, "--config", file.name, "--print-config")
            self.assertEqual(again.json(), printed.json())
            checked = programs.run(self.ROUTER, "--config", file.name, "--check-config")
            self.assertEqual(checked.code, 0, str(checked))

    def test_a_file_of_settings_that_is_wrong_is_a_fault_of_the_configuration(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"row-buget": 3}')
            file.flush()
            done = programs.run(self.ROUTER, "--config", file.name)
            self.assertEqual(done.code, 3, str(done))
            self.assertIn("did you mean 'row-budget'?", done.err)
        self.assertEqual(programs.run(self.ROUTER, "--config", "/nowhere").code, 3)
        self.assertEqual(programs.run(self.ROUTER, "--row-buget", "3").code, 2)

    def test_a_router_takes_requests_a_moment_longer_than_it_is_ready(self):
        served = programs.Service("router", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
                                  "--grpc-listen=127.0.0.1:0", "--drain-grace-seconds=4")
        self.addCleanup(served.close)
        router = served.ports["grpc"]
        served.process.send_signal(signal.SIGTERM)

        def drains():
            health = programs.run(programs.MOEBIUS, "health", "--router", router)
            return health.code == 1 and "draining" in health.out + health.err

        self.assertTrue(programs.wait_until(drains, 3))
        late = programs.run(programs.MOEBIUS, "generate", "--router", router, "--prompt-ids",
                            "256", "--max-tokens", "1")
        self.assertNotIn("takes no more requests", late.err)
        waited = programs.run(programs.MOEBIUS, "wait", "--router", router, "--timeout", "300ms")
        self.assertEqual(waited.code, 1, str(waited))
        self.assertEqual(served.process.wait(END_SECONDS), 0, served.stderr())

    def test_a_terminal_that_goes_drains_unless_nohup_says_otherwise(self):
        # A child has what its parent ignores, and this test may run below nohup itself.
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))
        flags = ("--listen=127.0.0.1:0", *self.ALONE)
        hears = programs.Service("router", *flags)
        self.addCleanup(hears.close)
        hears.process.send_signal(signal.SIGHUP)
        self.assertEqual(hears.process.wait(END_SECONDS), 0, hears.stderr())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ignores = programs.Service("router", *flags)
        self.addCleanup(ignores.close)
        ignores.process.send_signal(signal.SIGHUP)
        ignores.process.send_signal(signal.SIGINT)
        # Drained it would be, had it taken the first: a drain says so.
        self.assertEqual(ignores.process.wait(END_SECONDS), 0, ignores.stderr())
        self.assertIn("drain", hears.stderr())
        self.assertNotIn("drain", ignores.stderr())

    def test_exit_codes_say_what_was_wrong(self):
        cases = [(2, ("--modle", "x")), (3, ()), (3, ("--model", "x", "--listen", "0.0.0.0:1")),
                 (4, ("--model", "/nowhere", "--listen", "127.0.0.1:0"))]
        for code, flags in cases:
            done = programs.run(self.ROUTER, *flags)
            self.assertEqual(done.code, code, f"{flags}: {done}")
            self.assertTrue(done.err.startswith("error: "), str(done))

    def test_a_taken_port_is_exit_code_5(self):
        with subprocess.Popen([self.ROUTER, "--model", programs.DEMO, "--listen", "127.0.0.1:0",
                               *self.ALONE], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as router:
            line = router.stdout.readline().decode()
            data = next(w[5:] for w in line.split() if w.startswith("data="))
            done = programs.run(self.ROUTER, "--model", programs.DEMO, "--listen", data,
                                *self.ALONE)
            router.send_signal(signal.SIGTERM)
            self.assertEqual(router.wait(END_SECONDS), 0)
        self.assertEqual(done.code, 5, str(done))

    def test_another_configuration_is_refused_showing_both(self):
        with subprocess.Popen([self.ROUTER, "--model", programs.DEMO, "--listen", "127.0.0.1:0",
                               *self.ALONE], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as router:
            line = router.stdout.readline().decode()
            data = next(w[5:] for w in line.split() if w.startswith("data="))
            done = programs.run(self.EXPERT, "--model", programs.DEMO, "--join", data, "--span",
                                "256", "--http-listen=")
            router.send_signal(signal.SIGINT)
            self.assertEqual(router.wait(END_SECONDS), 0)
        self.assertEqual(done.code, 3, str(done))
        self.assertIn("the router has", done.err)
        self.assertIn("the expert has", done.err)


if __name__ == "__main__":
    unittest.main()
