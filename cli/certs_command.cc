// SPDX-License-Identifier: Apache-2.0
#include "cli/certs_command.h"

#include <cstdio>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"

#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"
#include "node/certificates.h"

namespace moebius {
namespace {

constexpr char kCertsExamples[] =
    R"(Certificates for the mutual TLS of a cluster: an authority, and one for each role.

Examples:
  moebius certs init --out certs
  moebius certs init --out certs --host node-7.example --host 10.0.0.7 --days 90
  moebius certs init --out certs --host node-8.example --keep-ca
  moebius certs show certs/router.pem

`init` prints the flags for each process. Nothing that is there is replaced: --keep-ca makes new
certificates of the same authority, which running processes take up; --force a new authority.)";

CLI::App& AddPart(CLI::App& certs, const char* name, const char* description) {
  CLI::App& command = *certs.add_subcommand(name, description);
  SetExamples(command, kCertsExamples);
  return command;
}

std::string Day(absl::Time time) { return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone()); }

int64_t DaysLeft(absl::Time end) { return (end - absl::Now()) / absl::Hours(24); }

absl::StatusOr<CertificateOptions> ParseInit(const CertsFlags& flags) {
  CertificateOptions options;
  options.dir = flags.out;
  while (options.dir.size() > 1 && options.dir.back() == '/') options.dir.pop_back();
  options.hosts = flags.hosts;
  if (flags.days.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(options.days, ParseInteger("--days", *flags.days));
  }
  if (flags.force && flags.keep_ca) {
    return absl::InvalidArgumentError("--force and --keep-ca contradict each other");
  }
  options.existing = flags.force     ? ExistingFiles::kReplace
                     : flags.keep_ca ? ExistingFiles::kKeepAuthority
                                     : ExistingFiles::kRefuse;
  return options;
}

// --- What is said.

bool IsUri(const std::string& name) { return absl::StartsWith(name, "URI:"); }
// "DNS:localhost" is localhost.
std::string HostOf(const std::string& name) { return name.substr(name.find(':') + 1); }

void PrintInitJson(const CertificateOptions& options, const CertificateFolder& folder,
                   const CertificateFacts& facts) {
  Json roles = Json::Object({});
  for (const CertificateFiles& files : folder.roles) {
    std::vector<Json> words;
    for (const std::string& word : TlsFlagsOf(options.dir, files.role)) {
      words.push_back(Json::String(word));
    }
    Json role = Json::Object({});
    role.Set("cert", Json::String(files.cert));
    role.Set("key", Json::String(files.key));
    role.Set("flags", Json::Array(std::move(words)));
    roles.Set(files.role, std::move(role));
  }
  std::vector<Json> names;
  for (const std::string& name : facts.names) {
    if (!IsUri(name)) names.push_back(Json::String(HostOf(name)));
  }
  Json json = Json::Object({});
  json.Set("ca", Json::String(folder.ca_cert));
  json.Set("ca_key", Json::String(folder.ca_key));
  json.Set("hosts", Json::Array(std::move(names)));
  json.Set("roles", std::move(roles));
  json.Set("until", Json::String(Day(facts.not_after)));
  std::puts(json.ToCanonicalText().c_str());
}

void PrintInit(const CertificateOptions& options, const CertificateFolder& folder,
               const CertificateFacts& facts) {
  std::vector<std::string> hosts;
  for (const std::string& name : facts.names) {
    if (!IsUri(name)) hosts.push_back(HostOf(name));
  }
  absl::PrintF("%s %d certificates, valid until %s, for %s\n\n",
               options.existing == ExistingFiles::kKeepAuthority
                   ? "of the authority that was there:"
                   : "made an authority and",
               folder.roles.size(), Day(facts.not_after), absl::StrJoin(hosts, ", "));
  for (const CertificateFiles& files : folder.roles) {
    const std::string program =
        files.role == "client" ? "moebius generate" : absl::StrCat("moebius-", files.role);
    absl::PrintF("  %-18s %s\n", program, absl::StrJoin(TlsFlagsOf(options.dir, files.role), " "));
  }
  absl::PrintF(
      "  %-18s --certs %s\n\n"
      "A host needs ca.pem and the two files of what runs there. Keep ca.key away from all of "
      "them:\n"
      "who has it can make peers.\n",
      "moebius serve", options.dir);
}

void PrintShowJson(const CertificateFacts& facts) {
  std::vector<Json> names;
  for (const std::string& name : facts.names) names.push_back(Json::String(name));
  Json json = Json::Object({});
  json.Set("subject", Json::String(facts.subject));
  json.Set("issuer", Json::String(facts.issuer));
  json.Set("names", Json::Array(std::move(names)));
  json.Set("from", Json::String(Day(facts.not_before)));
  json.Set("until", Json::String(Day(facts.not_after)));
  json.Set("days_left", Json::Integer(DaysLeft(facts.not_after)));
  json.Set("authority", Json::Boolean(facts.is_authority));
  std::puts(json.ToCanonicalText().c_str());
}

void PrintShow(const CertificateFacts& facts) {
  const bool is_over = facts.not_after <= absl::Now();
  absl::PrintF("%s%s\n  issuer   %s\n  names    %s\n  valid    %s to %s, %s\n", facts.subject,
               facts.is_authority ? " (an authority)" : "", facts.issuer,
               facts.names.empty() ? "none" : absl::StrJoin(facts.names, ", "),
               Day(facts.not_before), Day(facts.not_after),
               is_over ? "EXPIRED" : absl::StrCat(DaysLeft(facts.not_after), " days left"));
}

int RunInit(const CertsFlags& flags, OutputForm form) {
  const auto options = ParseInit(flags);
  if (!options.ok()) {
    PrintError(options.status(), form);
    return kExitUsage;
  }
  const auto folder = MakeCertificates(*options);
  if (!folder.ok()) {
    PrintError(folder.status(), form);
    return absl::IsInvalidArgument(folder.status()) ? kExitUsage : kExitFailed;
  }
  const auto facts = ReadCertificate(folder->Of("router").cert);
  if (!facts.ok()) {
    PrintError(facts.status(), form);
    return kExitFailed;
  }
  if (flags.json) {
    PrintInitJson(*options, *folder, *facts);
  } else {
    PrintInit(*options, *folder, *facts);
  }
  return kExitOk;
}

int RunShow(const CertsFlags& flags, OutputForm form) {
  const auto facts = ReadCertificate(flags.file);
  if (!facts.ok()) {
    PrintError(facts.status(), form);
    return kExitFailed;
  }
  if (flags.json) {
    PrintShowJson(*facts);
  } else {
    PrintShow(*facts);
  }
  return kExitOk;
}

}  // namespace

std::vector<std::string> TlsFlagsOf(const std::string& dir, const std::string& role) {
  const CertificateFolder folder = CertificateFolder::In(dir);
  const CertificateFiles& files = folder.Of(role);
  return {"--tls-ca", folder.ca_cert, "--tls-cert", files.cert, "--tls-key", files.key};
}

void AddCerts(CLI::App& app, CertsFlags& flags) {
  CLI::App& certs =
      AddCommand(app, "certs", "Make and show certificates for mutual TLS", kCertsExamples);
  CLI::App& init = AddPart(certs, "init", "Make an authority and a certificate for each role");
  init.add_option("--out", flags.out, "The folder to write to; made with mode 0700")
      ->type_name("DIR")
      ->required();
  AddRepeatedFlag(init,
                  {"Certificates", "--host", "NAME", nullptr,
                   "A name or address by which a process is dialed; may be repeated. localhost, "
                   "127.0.0.1 and ::1 are always there"},
                  &flags.hosts);
  AddTextFlags(init, {{"Certificates", "--days", "N", &flags.days,
                       "How long the roles' certificates are valid; 365"}});
  init.add_flag("--keep-ca", flags.keep_ca, "New certificates of the authority that is there")
      ->group("Certificates");
  init.add_flag("--force", flags.force, "Replace what is there, the authority too")
      ->group("Certificates");
  init.add_flag("--json", flags.json, "One JSON object on stdout")->group("Output");
  CLI::App& show = AddPart(certs, "show", "Show the first certificate of a PEM file");
  show.add_option("file", flags.file, "The file")->required();
  show.add_flag("--json", flags.json, "One JSON object on stdout")->group("Output");
}

int RunCerts(const CLI::App& certs_command, const CertsFlags& flags) {
  const OutputForm form = flags.json ? OutputForm::kJson : OutputForm::kText;
  if (certs_command.got_subcommand("init")) return RunInit(flags, form);
  if (certs_command.got_subcommand("show")) return RunShow(flags, form);
  std::fputs(certs_command.help().c_str(), stdout);
  return kExitOk;
}

}  // namespace moebius
