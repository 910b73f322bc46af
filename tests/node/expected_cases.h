// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/api/generate.h"
#include "node/embedded.h"

namespace moebius {

/// One case of models/demo/expected.json, ready to be asked.
struct ExpectedCase {
  std::string name;
  GenerateRequest request;
  std::vector<int64_t> token_ids;
  std::string logits_hash;
};

/// What a case was answered with.
struct CaseAnswer {
  std::vector<int64_t> token_ids;
  std::string logits_hash;
  std::string tokens_hash;
  bool exact = false;
  Exactness exactness;
};

/// The folder of the demo model, and its recorded cases.
std::string DemoFolder();
std::vector<ExpectedCase> ReadExpectedCases();
ExpectedCase FindExpectedCase(const std::string& name);
std::string ExpectedConfigHash();

/// Asks a node; a failure is a test failure.
CaseAnswer Ask(EmbeddedNode& node, const GenerateRequest& request);
/// Asks and compares ids and logits with what is recorded.
void ExpectSameBits(EmbeddedNode& node, const ExpectedCase& expected);

/// The demo with options changed by the caller; a failure to open ends the test program.
std::unique_ptr<EmbeddedNode> OpenDemo(const EmbeddedOptions& options = EmbeddedOptions());

}  // namespace moebius
