# SPDX-License-Identifier: Apache-2.0
"""The cluster step of the demo: real processes, one of which dies in the middle of an answer."""
import contextlib
import io
import tempfile
import unittest

import demo_cluster
import programs


class DemoClusterTest(unittest.TestCase):
    def run_demo(self, model):
        """(exit code, what it showed)"""
        out = io.StringIO()
        with tempfile.TemporaryDirectory() as logs, contextlib.redirect_stdout(out):
            code = demo_cluster.main([programs.MOEBIUS, model, "--logs", logs])
        return code, out.getvalue()

    def test_a_cluster_gives_the_recorded_bits_also_when_an_expert_service_dies(self):
        code, out = self.run_demo(programs.DEMO)
        self.assertEqual(code, 0, out)
        self.assertEqual(out.count("same bits ✓"), 2, out)
        # Two requests of 1,780; neither the canary nor rows that were sent again are load.
        self.assertIn("3,560 assignments", out)
        self.assertIn("1,780 assignments routed = 1,780 combined + 0 dropped", out)
        self.assertRegex(out, r"\(one message per expert: \d+\.\d, \d+\.\d KB each way\)")
        self.assertIn("layer 3 of 6", out)
        self.assertIn("All stopped, exit code 0", out)

    def test_one_flipped_bit_of_a_weight_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            programs.copy_demo_with_flipped_bit(folder)
            code, out = self.run_demo(folder)
        self.assertEqual(code, 1, out)
        self.assertIn("other bits ✗", out)
        self.assertNotIn("same bits", out)


if __name__ == "__main__":
    unittest.main()
