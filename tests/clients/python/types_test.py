# SPDX-License-Identifier: Apache-2.0
"""The client's types: bf16 rows, a dataclass for every message, annotations that hold."""
import dataclasses
import importlib.resources
import struct
import subprocess
import sys
import typing
import unittest

import environment

environment.enter()

# The client is there from here on.
# pylint: disable=wrong-import-position
import moebius  # noqa: E402
import numpy as np  # noqa: E402
from moebius import wire  # noqa: E402

# Responses whose dataclass has another name. The others are called as the RPC is.
CLASSES = {"Generate": moebius.GenerateChunk, "Forward": moebius.ForwardAnswer,
           "Route": moebius.RouteAnswer, "Explain": moebius.Explanation}


def float_of(bits):
    """The value of bf16 bits, by the definition: a float32 whose low half is zero."""
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


class Bf16Test(unittest.TestCase):
    def test_every_bf16_comes_back_as_itself(self):
        bits = np.arange(1 << 16, dtype=np.uint16)
        values = moebius.from_bf16(bits)
        for index in range(0, 1 << 16, 257):
            self.assertEqual(struct.pack("<f", values[index]), struct.pack("<f", float_of(index)))
        is_signalling = np.isnan(values) & ((bits & 0x40) == 0)
        np.testing.assert_array_equal(moebius.to_bf16(values), np.where(is_signalling, bits | 0x40,
                                                                        bits))

    def test_rounds_to_the_nearest_and_ties_to_even(self):
        def rounded(bits):
            value = struct.unpack("<f", struct.pack("<I", bits))[0]
            return int(moebius.to_bf16(np.array([value], dtype=np.float32))[0])

        self.assertEqual(rounded(0x3F807FFF), 0x3F80)
        self.assertEqual(rounded(0x3F808000), 0x3F80)
        self.assertEqual(rounded(0x3F808001), 0x3F81)
        self.assertEqual(rounded(0x3F818000), 0x3F82)
        self.assertEqual(rounded(0xBF818000), 0xBF82)
        self.assertEqual(rounded(0x7F7FFFFF), 0x7F80)
        self.assertEqual(rounded(0x00008001), 0x0001)

    def test_a_nan_whose_upper_half_is_an_infinity_stays_a_nan(self):
        value = np.array([0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
        self.assertTrue(np.isnan(moebius.from_bf16(moebius.to_bf16(value))).all())

    def test_keeps_shapes_and_reads_views(self):
        rows = np.arange(24, dtype=np.float64).reshape(4, 6)[::2, ::3]
        np.testing.assert_array_equal(moebius.from_bf16(moebius.to_bf16(rows)), rows)

    def test_refuses_bits_of_another_type(self):
        with self.assertRaisesRegex(TypeError, "int16"):
            moebius.from_bf16(np.zeros(3, dtype=np.int16))


class MessagesTest(unittest.TestCase):
    def check_fields(self, kind, descriptor):
        """The dataclass has the message's fields and no others; so have those within it."""
        hints = typing.get_type_hints(kind)
        self.assertEqual({field.name for field in dataclasses.fields(kind)},
                         {field.name for field in descriptor.fields}, kind.__name__)
        for field in descriptor.fields:
            inner = [hints[field.name], *typing.get_args(hints[field.name])]
            classes = [hint for hint in inner if dataclasses.is_dataclass(hint)]
            if field.message_type is not None:
                self.assertEqual(len(classes), 1, field.full_name)
                self.check_fields(classes[0], field.message_type)
            has_none = type(None) in inner
            is_optional_scalar = field.has_presence and field.message_type is None
            if is_optional_scalar:
                self.assertTrue(has_none, field.full_name)
            if has_none:
                self.assertTrue(field.has_presence, field.full_name)

    def test_every_field_of_a_response_has_its_name_in_a_dataclass(self):
        methods = wire.methods(wire.ROUTER)
        self.assertGreaterEqual(len(methods), 7)
        for name, method in methods.items():
            kind = CLASSES.get(name) or getattr(moebius, name.removeprefix("Get"))
            self.check_fields(kind, method.response.DESCRIPTOR)

    def test_every_field_of_generate_can_be_asked_for(self):
        fields = {field.name for field in wire.methods(wire.ROUTER)["Generate"].request.DESCRIPTOR
                  .fields} - {"deadline_ms"} | {"deadline_seconds"}
        self.assertEqual({field.name for field in dataclasses.fields(moebius.GenerateRequest)},
                         fields)

    def test_a_request_leaves_out_what_is_none_and_sends_zero(self):
        message = moebius.GenerateRequest(
            [5, 6], temperature=0, top_k=None, logprobs=0, logit_bias={3: -1.5},
            stop=["."], deadline_seconds=0.0014).to_message()
        self.assertEqual(list(message.token_ids), [5, 6])
        self.assertTrue(message.HasField("temperature") and message.HasField("logprobs"))
        for name in ("top_k", "top_p", "seed", "max_tokens"):
            self.assertFalse(message.HasField(name), name)
        self.assertEqual([(bias.token_id, bias.bias) for bias in message.logit_bias], [(3, -1.5)])
        self.assertEqual((list(message.stop), message.deadline_ms), (["."], 2))

    def test_a_seed_may_have_64_bits(self):
        self.assertEqual(moebius.GenerateRequest([1], seed=2**64 - 1).to_message().seed, 2**64 - 1)
        with self.assertRaises(ValueError):
            moebius.GenerateRequest([1], seed=2**64).to_message()

    def test_the_api_takes_no_names_in_the_pool_that_packages_share(self):
        # Another package may bring files and messages of the same names.
        from google.protobuf import descriptor_pool
        with self.assertRaises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName("grpc.health.v1.HealthCheckRequest")


class AnnotationsTest(unittest.TestCase):
    def check(self, *arguments):
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", *arguments], text=True,
                              capture_output=True, timeout=300, check=False,
                              cwd=environment.FOLDER)

    def test_the_package_is_typed_and_its_types_hold(self):
        package = importlib.resources.files("moebius")
        self.assertTrue(package.joinpath("py.typed").is_file())
        done = self.check("-p", "moebius")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_wrong_use_is_found(self):
        done = self.check("-c", "import moebius\n"
                          "answer = moebius.Client('a:1').generate(moebius.GenerateRequest([1]))\n"
                          "good: tuple[int, ...] = answer.token_ids\n"
                          "bad: str = answer.token_ids\n")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("error:"), 1, done.stdout)


if __name__ == "__main__":
    unittest.main()
