# SPDX-License-Identifier: Apache-2.0
"""Every case of models/demo/expected.json, answered by the program that users run."""
import json
import os
import tempfile
import unittest

import programs
import run_demo

EXPECTED = os.path.join(programs.DEMO, "expected.json")


class DemoBitsTest(unittest.TestCase):
    def cases(self):
        with open(EXPECTED, encoding="utf-8") as file:
            return json.load(file)["cases"]

    def test_every_case_has_the_recorded_bits(self):
        cases = self.cases()
        self.assertGreaterEqual(len(cases), 3)
        for case in cases:
            answer = run_demo.run_case(programs.MOEBIUS, programs.DEMO, case)
            self.assertIsNotNone(answer, case["name"])
            self.assertEqual(run_demo.compare(case, answer), [], case["name"])

    def test_one_flipped_bit_of_a_weight_is_noticed(self):
        case = run_demo.load_case(programs.DEMO, None)
        with tempfile.TemporaryDirectory() as folder:
            programs.copy_demo_with_flipped_bit(folder)
            answer = run_demo.run_case(programs.MOEBIUS, folder, case)
            self.assertIsNotNone(answer)
            self.assertNotEqual(run_demo.compare(case, answer), [])


if __name__ == "__main__":
    unittest.main()
