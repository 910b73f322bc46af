# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_instructions.py, with objects compiled here."""
import json
import os
import subprocess
import tempfile
import unittest

import check_instructions

PLAIN = "float f(float a, float b) { return a * b; }\n"
INLINE = "inline __attribute__((noinline)) float shared(float a) { return a * 2; }\n" \
         "float %s(float a) { return shared(a); }\n"


class TreeTest(unittest.TestCase):
    def check(self, files):
        """Faults of a tree of {path: (text, flags)}."""
        with tempfile.TemporaryDirectory() as root:
            tree = os.path.join(root, "build")
            os.makedirs(tree)
            commands = []
            for index, (path, (text, flags)) in enumerate(files.items()):
                source = os.path.join(root, path)
                os.makedirs(os.path.dirname(source), exist_ok=True)
                with open(source, "w", encoding="utf-8") as file:
                    file.write(text)
                command = ["g++", "-O2"] + flags + ["-o", f"{index}.o", "-c", source]
                subprocess.run(command, cwd=tree, check=True)
                commands.append({"directory": tree, "file": source, "command": " ".join(command)})
            with open(os.path.join(tree, "compile_commands.json"), "w", encoding="utf-8") as file:
                json.dump(commands, file)
            return check_instructions.check_tree(tree, root)[0]

    def test_baseline_code_passes(self):
        self.assertEqual(self.check({"moebius/base/a.cc": (PLAIN, [])}), [])

    def test_a_tier_may_use_its_instructions(self):
        self.assertEqual(self.check({"moebius/kernels/cpu/a.cc": (PLAIN, ["-mavx2"])}), [])

    def test_a_flag_outside_of_the_kernels_is_a_fault(self):
        for flag in ("-mavx2", "-march=native", "-msse4.2", "-mfma"):
            faults = self.check({"moebius/base/a.cc": (PLAIN, [flag])})
            self.assertEqual(len(faults), 1, flag)

    def test_a_target_attribute_is_found_in_the_object(self):
        text = '__attribute__((target("avx512f"))) ' + PLAIN
        faults = self.check({"moebius/base/a.cc": (text, [])})
        self.assertEqual(len(faults), 1)
        self.assertIn("vmulss", faults[0])

    def test_an_inline_function_in_two_objects_is_a_fault(self):
        faults = self.check({"moebius/base/a.cc": (INLINE % "a", []),
                             "moebius/kernels/cpu/b.cc": (INLINE % "b", ["-mavx2"])})
        self.assertEqual(len(faults), 1)
        self.assertIn("shares 1 inline function", faults[0])

    def test_two_baseline_objects_may_share(self):
        self.assertEqual(self.check({"moebius/base/a.cc": (INLINE % "a", []),
                                     "moebius/base/b.cc": (INLINE % "b", [])}), [])


class DisassemblyTest(unittest.TestCase):
    def found(self, instruction):
        return check_instructions.functions_beyond(f"0 <f>:\n   0:\t{instruction}\n")

    def test_knows_what_is_beyond_the_baseline(self):
        for instruction in ("vmulss %xmm1,%xmm0,%xmm0", "vpaddd %zmm1,%zmm2,%zmm3",
                            "kmovw %eax,%k1", "tileloadd (%rax),%tmm0", "vzeroupper",
                            "tdpbf16ps %tmm0,%tmm1,%tmm2", "shlx %rax,%rbx,%rcx"):
            self.assertTrue(self.found(instruction), instruction)

    def test_knows_what_is_not(self):
        for instruction in ("mulss %xmm1,%xmm0", "verw 0x0(%rip)", "mov %rax,%rbx",
                            "cvtsi2ss %eax,%xmm0", "call 0 <vector_fill>", "std", "test %eax,%eax"):
            self.assertFalse(self.found(instruction), instruction)


if __name__ == "__main__":
    unittest.main()
