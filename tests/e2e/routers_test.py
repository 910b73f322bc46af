# SPDX-License-Identifier: Apache-2.0
"""Two routers of their own attention ranks with the same expert services."""
import concurrent.futures
import unittest

import programs

HOSTS = ("--listen=127.0.0.1:0", "--admin-listen=", "--http-listen=", "--grpc-listen=127.0.0.1:0")


class RoutersTest(unittest.TestCase):
    def start(self, role, *flags):
        service = programs.Service(role, *flags)
        self.addCleanup(service.close)
        return service

    def start_router(self, *flags):
        router = self.start("router", "--experts=2", *(flags or HOSTS))
        self.start("attention", f"--join={router.ports['data']}", "--http-listen=")
        return router

    def wait(self, router):
        done = programs.run(programs.MOEBIUS, "wait", "--router", router.ports["grpc"],
                            "--timeout", "120s")
        self.assertEqual(done.code, 0, f"{done}\n{router.stderr()}")

    def check_bits(self, router, name):
        case = programs.expected_case(name)
        done = programs.run(programs.MOEBIUS, "generate", "--router", router.ports["grpc"],
                            *programs.flags_of_case(case))
        self.assertEqual(done.code, 0, str(done))
        self.assertEqual(done.json()["logits_hash"], case["logits_hash"])
        self.assertTrue(done.json()["exactness"]["exact"])

    def test_both_answer_at_once_and_one_outlives_the_other(self):
        routers = [self.start_router(), self.start_router()]
        joins = [f"--join={router.ports['data']}" for router in routers]
        for index in range(2):
            self.start("expert", f"--name=expert-{index}", *joins, "--http-listen=")
        for router in routers:
            self.wait(router)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            jobs = [pool.submit(self.check_bits, router, name)
                    for router in routers for name in ("greedy", "sampled")]
            for job in jobs:
                job.result()
        routers[1].close()
        self.check_bits(routers[0], "greedy")
        again = self.start_router(*(f"--{flag}={routers[1].ports[port]}" for flag, port in
                                    (("listen", "data"), ("grpc-listen", "grpc"))),
                                  "--admin-listen=", "--http-listen=")
        self.wait(again)
        self.check_bits(again, "sampled")

    def test_an_attention_rank_joins_one_router(self):
        done = programs.run(programs.PROGRAMS + "/moebius-attention", "--model", programs.DEMO,
                            "--join=127.0.0.1:1", "--join=127.0.0.1:2")
        self.assertEqual(done.code, 3, str(done))
        self.assertIn("keeps the sessions of one router", done.err)


if __name__ == "__main__":
    unittest.main()
