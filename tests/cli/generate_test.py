# SPDX-License-Identifier: Apache-2.0
"""`moebius generate` as people and scripts use it: text, JSON, exit codes, hostile input, Ctrl-C."""
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.environ["MOEBIUS_SOURCE_DIR"], "tests", "e2e"))
import programs  # noqa: E402

PROMPT = "And the king said to them"


def run(*flags, model=programs.DEMO):
    return programs.run(programs.MOEBIUS, "generate", "--model", model, *flags)


class GenerateTest(unittest.TestCase):
    def refused(self, code, *flags, model=programs.DEMO):
        """Exit code, and the error object of the same refusal."""
        text = run(*flags, model=model)
        self.assertEqual(text.code, code, str(text))
        self.assertEqual(text.out, "")
        self.assertTrue(text.err.startswith("error: "), text.err)
        done = run(*flags, "--json", model=model)
        self.assertEqual(done.code, code, str(done))
        self.assertEqual(done.out, "")
        error = json.loads(done.err)
        self.assertEqual(sorted(error), ["code", "hint", "message", "retryable"])
        self.assertIn(error["message"][:40], text.err)
        return error

    def test_text_goes_to_stdout_and_all_else_to_stderr(self):
        done = run("--prompt", PROMPT, "--max-tokens", "12", "--seed", "7")
        self.assertEqual(done.code, 0, str(done))
        answer = programs.generate("--prompt", PROMPT, "--max-tokens", "12", "--seed", "7")
        self.assertEqual(done.out, answer["text"] + "\n")
        self.assertRegex(done.err, r"26 \+ 12 tokens   prefill [\d,.]+ tok/s   decode [\d,.]+ tok/s   "
                                   r"\w+, \d+ threads?, seed 7")
        self.assertIn(answer["logits_hash"], done.err)

    def test_the_reproduce_line_reproduces(self):
        done = run("--prompt", PROMPT, "--max-tokens", "20", "--temperature", "0.9")
        line = re.search(r"(?m)^reproduce: moebius (.*)  # logits ([0-9a-f]{16})$", done.err)
        self.assertIsNotNone(line, str(done))
        again = subprocess.run(f"{programs.MOEBIUS} {line.group(1)} --json", shell=True, check=True,
                               capture_output=True, cwd=programs.SOURCE)
        self.assertEqual(json.loads(again.stdout)["logits_hash"], line.group(2))

    def test_quiet_leaves_the_answer_alone(self):
        done = run("--prompt", PROMPT, "--max-tokens", "4", "--quiet")
        self.assertEqual(done.err, "")

    def test_verbose_says_where_the_time_went(self):
        done = run("--prompt", PROMPT, "--max-tokens", "4", "--verbose")
        for word in ("attention", "experts", "gate+plan", "head", "assignments routed"):
            self.assertIn(word, done.err)

    def test_a_seed_decides_and_temperature_zero_ignores_it(self):
        def tokens(*flags):
            done = run("--prompt", PROMPT, "--max-tokens", "30", "--json", *flags)
            return done.json()["token_ids"]
        seven = tokens("--temperature", "1", "--seed", "7")
        self.assertEqual(seven, tokens("--temperature", "1", "--seed", "7"))
        self.assertNotEqual(seven, tokens("--temperature", "1", "--seed", "8"))
        greedy = tokens("--temperature", "0", "--seed", "7")
        self.assertEqual(greedy, tokens("--temperature", "0", "--seed", "8"))
        self.assertEqual(greedy, tokens("--temperature", "5", "--top-k", "1", "--seed", "9"))
        self.assertEqual(greedy, tokens("--temperature", "5", "--top-p", "0", "--seed", "9"))
        self.assertEqual(greedy, tokens())  # generation_config.json says greedy

    def test_a_stop_string_ends_before_itself(self):
        free = programs.generate("--prompt", PROMPT, "--max-tokens", "40")
        stop = free["text"][10:14]
        done = programs.generate("--prompt", PROMPT, "--max-tokens", "40", "--stop", stop)
        self.assertEqual(done["finish_reason"], "stop")
        self.assertEqual(done["matched_stop"], stop)
        self.assertEqual(done["text"], free["text"][:free["text"].index(stop)])
        self.assertEqual(done["completion_tokens"], len(done["token_ids"]))

    def test_logprobs_come_with_every_token(self):
        done = programs.generate("--prompt", PROMPT, "--max-tokens", "5", "--logprobs", "2")
        self.assertEqual(len(done["logprobs"]), 5)
        for token_id, entry in zip(done["token_ids"], done["logprobs"]):
            self.assertEqual(entry["token_id"], token_id)
            self.assertEqual(len(entry["top"]), 2)
            self.assertEqual(entry["top"][0]["token_id"], token_id)  # greedy
            self.assertLessEqual(entry["logprob"], 0)

    def test_ids_text_and_files_of_one_prompt_have_one_answer(self):
        ids = [256] + list(PROMPT.encode())
        expected = programs.generate("--prompt", PROMPT, "--max-tokens", "6")["logits_hash"]
        with tempfile.TemporaryDirectory() as folder:
            paths = {}
            for name, text in (("text", PROMPT), ("array", json.dumps(ids)),
                               ("words", "\n".join(map(str, ids)))):
                paths[name] = os.path.join(folder, name)
                with open(paths[name], "w", encoding="utf-8") as file:
                    file.write(text)
            for flags in (("--prompt-ids", ",".join(map(str, ids))),
                          ("--prompt-ids", paths["array"]), ("--prompt-ids", paths["words"]),
                          ("--prompt-file", paths["text"])):
                answer = programs.generate(*flags, "--max-tokens", "6")
                self.assertEqual(answer["logits_hash"], expected, flags[0])
                self.assertEqual(answer["prompt_tokens"], len(ids))

    def test_usage_errors_exit_with_two(self):
        self.refused(2, "--prompt", "x", "--temperature", "warm")
        self.refused(2, "--prompt", "x", "--max-tokens", "1.5")
        self.refused(2, "--prompt", "x", "--tier", "sse")
        self.refused(2, "--prompt", "x", "--prompt-ids", "1")
        self.assertIn("--prompt", self.refused(2)["hint"])
        self.assertIn("did you mean '--max-tokens'", self.refused(2, "--max-token", "1")["message"])

    def test_requests_that_cannot_be_exit_with_one_and_say_why(self):
        self.assertIn("no token ids", self.refused(1, "--prompt-ids", "")["message"])
        for bad in ("259", "2147483648", "4294967295"):
            message = self.refused(1, "--prompt-ids", f"1,2,{bad}")["message"]
            self.assertEqual(message,
                             f"token id {bad} at position 2 is outside the vocabulary of 259")
        long = self.refused(1, "--prompt", "x", "--max-tokens", "99999")
        self.assertIn("the prompt has 2 tokens and max_tokens is 99999", long["message"])
        self.assertIn("max_tokens up to 16382", long["hint"])
        self.assertIn("top_p", self.refused(1, "--prompt", "x", "--top-p", "1.5")["message"])
        self.assertIn("temperature", self.refused(1, "--prompt", "x", "--temperature", "-1")["message"])
        self.assertIn("cannot open", self.refused(1, "--prompt-file", "/nonexistent")["message"])
        small = self.refused(1, "--prompt", "x" * 3000, "--kv-budget", "1MiB")
        self.assertEqual(small["code"], "RESOURCE_EXHAUSTED")
        self.assertIn("KV slots, the pool has", small["message"])

    def test_a_model_that_is_none_exits_with_four(self):
        with tempfile.TemporaryDirectory() as folder:
            self.refused(4, "--prompt", "x", model=os.path.join(folder, "absent"))
            self.refused(4, "--prompt", "x", model=folder)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                file.write('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
            self.assertIn("llama", self.refused(4, "--prompt", "x", model=folder)["message"].lower())

    def test_a_truncated_file_is_refused_with_both_sizes(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "moebius.json"):
                os.symlink(os.path.join(programs.DEMO, name), os.path.join(folder, name))
            with open(os.path.join(programs.DEMO, "model.safetensors"), "rb") as file:
                data = file.read()
            with open(os.path.join(folder, "model.safetensors"), "wb") as file:
                file.write(data[:-1000])
            message = self.refused(4, "--prompt", "x", model=folder)["message"]
            self.assertIn("model.safetensors", message)
            self.assertIn(str(len(data)), message)
            self.assertIn(str(len(data) - 1000), message)

    def test_more_memory_than_there_is_exits_with_three(self):
        self.assertIn("--kv-budget",
                      self.refused(3, "--prompt", "x", "--kv-budget", "9999999GiB")["hint"])

    def test_a_weight_that_is_not_a_number_fails_the_request_and_not_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "moebius.json"):
                os.symlink(os.path.join(programs.DEMO, name), os.path.join(folder, name))
            with open(os.path.join(programs.DEMO, "model.safetensors"), "rb") as file:
                data = bytearray(file.read())
            header_bytes = struct.unpack_from("<Q", data)[0]
            header = json.loads(data[8:8 + header_bytes])
            begin = header["model.embed_tokens.weight"]["data_offsets"][0]
            # The embedding of the letter Q.
            struct.pack_into("<H", data, 8 + header_bytes + begin + ord("Q") * 192 * 2, 0x7FC0)
            with open(os.path.join(folder, "model.safetensors"), "wb") as file:
                file.write(data)
            error = self.refused(1, "--prompt", "xyQ", model=folder)
            self.assertIn("are not finite", error["message"])
            self.assertEqual(run("--prompt", "xyz", "--max-tokens", "2", model=folder).code, 0)

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([programs.MOEBIUS, "generate", "--model", programs.DEMO,
                                   "--prompt", "x", "--max-tokens", "2"], stdout=full,
                                  stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write the answer", done.stderr)

    def test_interrupt_keeps_the_partial_answer(self):
        for flags in ((), ("--json",)):
            child = subprocess.Popen(
                [programs.MOEBIUS, "generate", "--model", programs.DEMO, "--prompt", PROMPT,
                 "--max-tokens", "16000", "--ignore-eos", *flags],
                bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if flags:
                time.sleep(0.5)  # with --json nothing shows that the answer has begun
                first = b""
            else:
                first = child.stdout.read(1)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 0, err)
            if flags:
                answer = json.loads(out)
                self.assertEqual(answer["finish_reason"], "abort")
                self.assertEqual(len(answer["token_ids"]), answer["completion_tokens"])
                self.assertLess(answer["completion_tokens"], 16000)
            else:
                self.assertGreaterEqual(len(first + out), 1)
                self.assertIn(b"ended by abort", err)

    def test_a_terminal_gets_no_color_and_pipes_get_no_bar(self):
        with tempfile.NamedTemporaryFile() as prompt:
            prompt.write(b"Some words of a text, and more of them. " * 300)
            prompt.flush()
            piped = run("--prompt-file", prompt.name, "--max-tokens", "1")
            self.assertEqual(piped.code, 0, str(piped))
            self.assertNotIn("\r", piped.err)
            shown = self.on_terminal("--prompt-file", prompt.name, "--max-tokens", "1")
            self.assertIn("reading the prompt", shown)
            self.assertIn("%", shown)
            self.assertNotRegex(shown, r"\x1b\[[0-9;]*m")

    @staticmethod
    def on_terminal(*flags):
        """What a terminal receives."""
        master, slave = pty.openpty()
        child = subprocess.Popen([programs.MOEBIUS, "generate", "--model", programs.DEMO, *flags],
                                 stdin=slave, stdout=slave, stderr=slave,
                                 env=dict(os.environ, NO_COLOR="1", TERM="xterm"))
        os.close(slave)
        received = b""
        while True:
            if not select.select([master], [], [], 60)[0]:
                break
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            received += chunk
        child.wait(timeout=60)
        os.close(master)
        return received.decode("utf-8", "replace")


if __name__ == "__main__":
    unittest.main()
