// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace moebius {

/// Flags of `moebius certs init` and `certs show`, as typed; filled when the line is parsed.
struct CertsFlags {
  std::string out;
  std::vector<std::string> hosts;
  std::optional<std::string> days;
  bool keep_ca = false;
  bool force = false;
  std::string file;  // of show
  bool json = false;
};

/// `flags` outlives the parse.
void AddCerts(CLI::App& app, CertsFlags& flags);

/// Runs the one under `certs` that was parsed, or prints their help. Returns the exit code.
int RunCerts(const CLI::App& certs_command, const CertsFlags& flags);

/// "--tls-ca DIR/ca.pem --tls-cert DIR/ROLE.pem --tls-key DIR/ROLE.key": a process's flags with
/// what `certs init` has left in a folder. Pure.
std::vector<std::string> TlsFlagsOf(const std::string& dir, const std::string& role);

}  // namespace moebius
