# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_thread_safety.py: which sources it looks at."""
import json
import os
import tempfile
import unittest

import check_thread_safety

FILES = {
    "moebius/base/mutex.h": "#pragma once\n",
    "moebius/a/queue.h": '#include "moebius/base/mutex.h"\nint x MOEBIUS_GUARDED_BY(mutex_);\n',
    "moebius/a/queue.cc": '#include "moebius/a/queue.h"\n',
    "moebius/a/lock.cc": "void F() { MutexLock lock(mutex); }\n",
    "moebius/a/plain.cc": "#include <vector>\n",
    "tests/a/queue_test.cc": '#include "moebius/a/queue.h"\n',
}


class CommandsTest(unittest.TestCase):
    def test_takes_the_sources_that_see_a_lock_without_writing_objects(self):
        with tempfile.TemporaryDirectory() as root:
            tree = os.path.join(root, "build")
            os.makedirs(tree)
            entries = []
            for path, text in FILES.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
                if path.endswith(".cc"):
                    entries.append({"directory": tree, "file": full, "command":
                                    f"/usr/bin/ccache /usr/bin/clang++-16 -DX=1 -o x.o -c {full}"})
            with open(os.path.join(tree, "compile_commands.json"), "w", encoding="utf-8") as file:
                json.dump(entries, file)
            found = check_thread_safety.commands(tree, root)
            self.assertEqual(sorted(os.path.relpath(path, root) for path in found),
                             ["moebius/a/lock.cc", "moebius/a/queue.cc"])
            words, folder = found[os.path.join(root, "moebius/a/lock.cc")]
            self.assertEqual(words[:2], ["/usr/bin/clang++-16", "-DX=1"])
            self.assertNotIn("x.o", words)
            self.assertIn("-Werror=thread-safety", words)
            self.assertEqual(folder, tree)


if __name__ == "__main__":
    unittest.main()
