# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_layers.py."""
import os
import tempfile
import unittest

import check_layers

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = LICENCE + "#pragma once\n"


def faults(path, text):
    return [fault for _, fault in check_layers.check_file(path, text)]


class IncludesTest(unittest.TestCase):
    def accepts(self, path, include):
        self.assertEqual(faults(path, HEADER + f"#include {include}\n"), [])

    def refuses(self, path, include):
        self.assertEqual(len(faults(path, HEADER + f"#include {include}\n")), 1, (path, include))

    def test_a_room_includes_itself_and_its_doors(self):
        self.accepts("moebius/routing/gate.h", '"moebius/routing/assignments.h"')
        self.accepts("moebius/routing/gate.h", '"moebius/placement/placement.h"')
        self.accepts("moebius/tensor/rows.h", '"moebius/base/check.h"')
        self.accepts("router_service/lead.h", '"moebius/attention/step_plan.h"')
        self.accepts("node/embedded.h", '"expert_service/expert_pipeline.h"')
        self.accepts("tests/node/x_test.h", '"node/embedded.h"')

    def test_no_room_looks_up(self):
        self.refuses("moebius/base/clock.h", '"moebius/tensor/rows.h"')
        self.refuses("moebius/placement/placement.h", '"moebius/tensor/rows.h"')
        self.refuses("moebius/kernels/norm.h", '"moebius/model/model_config.h"')
        self.refuses("moebius/attention/span.h", '"moebius/routing/gate.h"')
        self.refuses("moebius/routing/gate.h", '"router_service/lead.h"')
        self.refuses("node/embedded.h", '"tests/support/skip.h"')
        self.refuses("node/embedded.h", '"cli/terminal.h"')

    def test_services_do_not_know_each_other(self):
        self.refuses("router_service/lead.h", '"expert_service/expert_pipeline.h"')
        self.refuses("expert_service/expert_pipeline.h", '"attention_service/attention_pipeline.h"')

    def test_only_the_frame_folder_of_transport_is_a_door_of_wire(self):
        self.accepts("moebius/wire/codec.h", '"moebius/transport/frame/header.h"')
        self.refuses("moebius/wire/codec.h", '"moebius/transport/grpc/stream.h"')

    def test_only_the_status_bridge_of_wire_knows_grpc(self):
        self.accepts("moebius/wire/grpc/grpc_status.h", "<grpcpp/support/status.h>")
        self.refuses("moebius/wire/codec.h", "<grpcpp/support/status.h>")

    def test_the_services_share_a_room_that_knows_none_of_them(self):
        self.accepts("moebius/service/joiner.h", '"moebius/transport/transport.h"')
        self.accepts("expert_service/server.h", '"moebius/service/joiner.h"')
        self.refuses("moebius/service/joiner.h", '"expert_service/expert_pipeline.h"')
        self.refuses("moebius/service/joiner.h", '"moebius/routing/gate.h"')
        self.refuses("moebius/transport/transport.h", '"moebius/service/flags.h"')

    def test_a_room_with_a_longer_name_is_another_room(self):
        self.refuses("moebius/tensor/rows.h", '"moebius/base_more/x.h"')

    def test_guests_come_only_where_they_are_invited(self):
        self.accepts("moebius/base/hash.h", "<xxhash.h>")
        self.refuses("moebius/tensor/dtype.h", "<xxhash.h>")
        self.accepts("moebius/model/json.h", '"nlohmann/json.hpp"')
        self.refuses("moebius/routing/gate.h", '"nlohmann/json.hpp"')
        self.accepts("moebius/routing/gate.h", '"absl/status/status.h"')
        self.refuses("moebius/base/clock.h", '"gtest/gtest.h"')
        self.accepts("tests/base/clock_test.h", '"gtest/gtest.h"')
        self.refuses("router_service/lead.h", '"CLI/CLI.hpp"')
        self.accepts("router_service/main.cc", '"CLI/CLI.hpp"')
        self.accepts("cli/main.h", '"CLI/CLI.hpp"')
        self.accepts("moebius/telemetry/registry.h", '"prometheus/registry.h"')
        self.refuses("router_service/lead.h", '"prometheus/registry.h"')

    def test_grpc_and_cuda_stay_in_their_folders(self):
        self.accepts("moebius/transport/grpc/stream.h", "<grpcpp/grpcpp.h>")
        self.refuses("moebius/transport/loopback/stream.h", "<grpcpp/grpcpp.h>")
        self.accepts("moebius/kernels/cuda/gemm.cu", "<cuda_runtime.h>")
        self.refuses("moebius/kernels/cpu/gemm.h", "<cuda_runtime.h>")

    def test_protobuf_reaches_a_service_only_in_its_rpc_files(self):
        self.accepts("router_service/router_rpc.h", '"google/protobuf/message.h"')
        self.refuses("router_service/lead.h", '"google/protobuf/message.h"')

    def test_unknown_guests_and_relative_paths_are_refused(self):
        self.refuses("moebius/base/clock.h", "<boost/asio.hpp>")
        self.refuses("moebius/base/clock.h", '"clock_impl.h"')
        self.refuses("moebius/base/clock.h", '"../tensor/rows.h"')

    def test_system_headers_are_free(self):
        for include in ("<vector>", "<sys/mman.h>", "<immintrin.h>", "<netinet/in.h>"):
            self.accepts("moebius/base/clock.h", include)


class FilesTest(unittest.TestCase):
    def test_the_licence_line_is_near_the_top(self):
        self.assertEqual(len(faults("moebius/base/x.cc", "int x;\n")), 1)
        self.assertEqual(len(faults("tools/x.py", "pass\n")), 1)
        self.assertEqual(len(faults("CMakeLists.txt", "project(x)\n")), 1)
        self.assertEqual(faults("tools/x.py", "#!/usr/bin/env python3\n# SPDX-License-Identifier: "
                                              "Apache-2.0\n"), [])

    def test_headers_have_pragma_once(self):
        self.assertEqual(len(faults("moebius/base/x.h", LICENCE)), 1)
        self.assertEqual(faults("moebius/base/x.cc", LICENCE), [])

    def test_no_file_is_longer_than_the_limit(self):
        body = "int x;\n" * (check_layers.MAX_LINES - 1)
        self.assertEqual(faults("moebius/base/x.cc", LICENCE + body), [])
        self.assertEqual(len(faults("moebius/base/x.cc", LICENCE + body + "int y;\n")), 1)

    def test_a_source_in_no_room_is_a_fault(self):
        self.assertEqual(len(faults("moebius/new_room/x.cc", LICENCE)), 1)
        self.assertEqual(len(faults("x.cc", LICENCE)), 1)


class TreeTest(unittest.TestCase):
    def write(self, root, path, text):
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def test_faults_name_file_and_line_and_build_is_left_out(self):
        with tempfile.TemporaryDirectory() as root:
            self.write(root, "moebius/base/x.h", HEADER + '#include "node/embedded.h"\n')
            self.write(root, "build/y.cc", "no licence\n")
            found, count = check_layers.check_tree(root)
            self.assertEqual(count, 1)
            self.assertEqual(found, ["moebius/base/x.h:3: moebius/base may not include "
                                     "node/embedded.h: node is not one of its doors"])
            self.assertEqual(check_layers.main([root]), 1)

    def test_an_empty_tree_is_no_success(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(check_layers.main([root]), 1)


if __name__ == "__main__":
    unittest.main()
