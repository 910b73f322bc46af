// SPDX-License-Identifier: Apache-2.0
#include "node/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/owned_fd.h"
#include "moebius/base/status.h"
#include "node/x509.h"

namespace moebius {
namespace {

constexpr int64_t kAuthorityDays = 3650;
constexpr size_t kMaxNameBytes = 253;  // of a DNS name
constexpr size_t kMaxLabelBytes = 63;  // between its dots
constexpr size_t kMaxPemBytes = 1 << 20;
constexpr char kTemporarySuffix[] = ".new";

absl::Status FileError(const std::string& path, absl::string_view what, int error) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrCat(path, ": cannot be ", what, ": ", std::strerror(error)));
}

// --- Hosts.

bool IsIpAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Letters, digits and hyphens between dots; the first label may be * for all of one level.
bool IsDnsName(absl::string_view host) {
  if (host.empty() || host.size() > kMaxNameBytes) return false;
  bool is_first = true;
  bool is_number = true;  // "1.2.3" is a mistyped address
  for (const absl::string_view label : absl::StrSplit(host, '.')) {
    const bool is_star = std::exchange(is_first, false) && label == "*";
    if (label.empty() || label.size() > kMaxLabelBytes) return false;
    if (label.front() == '-' || label.back() == '-') return false;
    for (const char c : label) {
      if (!is_star && !absl::ascii_isalnum(c) && c != '-') return false;
      is_number = is_number && absl::ascii_isdigit(c);
    }
  }
  return !is_number && host != "*";
}

// The names of every certificate, each once.
absl::StatusOr<std::vector<HostName>> ReadHosts(const std::vector<std::string>& hosts) {
  if (hosts.size() > kMaxCertificateHosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host is given ", hosts.size(), " times; at most ", kMaxCertificateHosts));
  }
  std::vector<HostName> names;
  std::vector<std::string> all = {"localhost", "127.0.0.1", "::1"};
  all.insert(all.end(), hosts.begin(), hosts.end());
  for (const std::string& host : all) {
    const bool is_ip = IsIpAddress(host);
    if (!is_ip && !IsDnsName(host)) {
      return WithHint(
          absl::InvalidArgumentError(absl::StrCat("--host '", host.substr(0, kMaxNameBytes),
                                                  "' is no name and no address")),
          "give a DNS name or an IP address, without a port");
    }
    const HostName name{is_ip ? HostName::Kind::kIp : HostName::Kind::kDns, host};
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

// --- Files.

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (file == nullptr) return FileError(path, "read", errno);
  std::string text(kMaxPemBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return FileError(path, "read", EIO);
  if (text.size() > kMaxPemBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", kMaxPemBytes, " bytes"));
  }
  return text;
}

struct NewFile {
  std::string path;
  std::string text;
  mode_t mode = 0600;
};

// The text under a name of its own beside the path, on the disk.
absl::Status WriteTemporary(const NewFile& file) {
  const std::string path = file.path + kTemporarySuffix;
  unlink(path.c_str());  // what an interrupted run has left
  const OwnedFd out(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (out.fd() < 0) return FileError(path, "made", errno);
  size_t written = 0;
  while (written < file.text.size()) {
    const ssize_t n = write(out.fd(), file.text.data() + written, file.text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path, "written", n < 0 ? errno : EIO);
    written += static_cast<size_t>(n);
  }
  if (fchmod(out.fd(), file.mode) != 0 || fsync(out.fd()) != 0) {
    return FileError(path, "written", errno);
  }
  return absl::OkStatus();
}

// A link refuses a name that is taken, also by somebody who was quicker than any look.
absl::Status Publish(const NewFile& file, ExistingFiles existing) {
  const std::string temporary = file.path + kTemporarySuffix;
  if (existing != ExistingFiles::kRefuse) {
    if (rename(temporary.c_str(), file.path.c_str()) == 0) return absl::OkStatus();
    return FileError(file.path, "replaced", errno);
  }
  if (link(temporary.c_str(), file.path.c_str()) != 0) return FileError(file.path, "made", errno);
  unlink(temporary.c_str());
  return absl::OkStatus();
}

absl::Status WriteAll(const std::vector<NewFile>& files, ExistingFiles existing) {
  absl::Status status;
  for (const NewFile& file : files) {
    if (status = WriteTemporary(file); !status.ok()) break;
  }
  for (const NewFile& file : files) {
    if (status.ok()) status = Publish(file, existing);
  }
  for (const NewFile& file : files) unlink((file.path + kTemporarySuffix).c_str());
  return status;
}

absl::Status CheckNoneIsThere(const CertificateFolder& folder) {
  std::vector<std::string> paths = {folder.ca_cert, folder.ca_key};
  for (const CertificateFiles& files : folder.roles) {
    paths.push_back(files.cert);
    paths.push_back(files.key);
  }
  for (const std::string& path : paths) {
    struct stat facts;
    if (lstat(path.c_str(), &facts) != 0) continue;
    return WithHint(
        absl::AlreadyExistsError(absl::StrCat(path, " is there already; nothing was written")),
        "--keep-ca makes new certificates of the same authority, --force a new authority, which "
        "no running process trusts");
  }
  return absl::OkStatus();
}

absl::Status MakeFolder(const std::string& dir) {
  if (dir.empty()) return absl::InvalidArgumentError("--out is empty");
  if (mkdir(dir.c_str(), 0700) == 0) return absl::OkStatus();
  const int error = errno;
  struct stat facts;
  if (error == EEXIST && stat(dir.c_str(), &facts) == 0) {
    if (S_ISDIR(facts.st_mode)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(dir, ": is a file, no folder"));
  }
  return FileError(dir, "made", error);
}

// --- The authority.

absl::StatusOr<SignedKey> KeptAuthority(const CertificateFolder& folder, absl::Time end) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::string cert, ReadPem(folder.ca_cert));
  MOEBIUS_ASSIGN_OR_RETURN(const std::string key, ReadPem(folder.ca_key));
  MOEBIUS_ASSIGN_OR_RETURN(SignedKey authority, ParseSignedKey(cert, key));
  MOEBIUS_ASSIGN_OR_RETURN(const CertificateFacts facts, DescribeCertificate(cert));
  if (!facts.is_authority) {
    return absl::InvalidArgumentError(absl::StrCat(folder.ca_cert, ": is no authority"));
  }
  if (facts.not_after < end) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        folder.ca_cert, " ends ",
                        absl::FormatTime("%Y-%m-%d", facts.not_after, absl::UTCTimeZone()),
                        ", before the certificates would")),
                    "lower --days, or make a new authority with --force");
  }
  return authority;
}

}  // namespace

CertificateFolder CertificateFolder::In(const std::string& dir) {
  CertificateFolder folder;
  folder.ca_cert = absl::StrCat(dir, "/ca.pem");
  folder.ca_key = absl::StrCat(dir, "/ca.key");
  for (const absl::string_view role : kCertificateRoles) {
    folder.roles.push_back({std::string(role), absl::StrCat(dir, "/", role, ".pem"),
                            absl::StrCat(dir, "/", role, ".key")});
  }
  return folder;
}

const CertificateFiles& CertificateFolder::Of(absl::string_view role) const {
  const auto found =
      std::find_if(roles.begin(), roles.end(),
                   [role](const CertificateFiles& files) { return files.role == role; });
  MOEBIUS_CHECK(found != roles.end());
  return *found;
}

absl::StatusOr<CertificateFolder> MakeCertificates(const CertificateOptions& options) {
  if (options.days < 1 || options.days > kMaxCertificateDays) {
    return absl::InvalidArgumentError(
        absl::StrCat("--days is ", options.days, ", not in [1, ", kMaxCertificateDays, "]"));
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<HostName> hosts, ReadHosts(options.hosts));
  MOEBIUS_RETURN_IF_ERROR(MakeFolder(options.dir));
  const CertificateFolder folder = CertificateFolder::In(options.dir);
  if (options.existing == ExistingFiles::kRefuse) {
    MOEBIUS_RETURN_IF_ERROR(CheckNoneIsThere(folder));
  }
  const absl::Time end = options.now + absl::Hours(24) * options.days;
  std::vector<NewFile> files;
  SignedKey authority;
  if (options.existing == ExistingFiles::kKeepAuthority) {
    MOEBIUS_ASSIGN_OR_RETURN(authority, KeptAuthority(folder, end));
  } else {
    const absl::Time ca_end = options.now + absl::Hours(24) * kAuthorityDays;
    MOEBIUS_ASSIGN_OR_RETURN(authority, MakeAuthority({options.now, std::max(end, ca_end)}));
    MOEBIUS_ASSIGN_OR_RETURN(const PemPair pem, FormatSignedKey(authority));
    files.push_back({folder.ca_key, pem.key, 0600});
    files.push_back({folder.ca_cert, pem.cert, 0644});
  }
  for (const CertificateFiles& role : folder.roles) {
    LeafOptions leaf;
    leaf.role = role.role;
    leaf.hosts = hosts;
    leaf.validity = {options.now, end};
    leaf.purpose = role.role == "client" ? LeafPurpose::kCall : LeafPurpose::kServeAndCall;
    MOEBIUS_ASSIGN_OR_RETURN(const SignedKey signed_key, MakeLeaf(leaf, authority));
    MOEBIUS_ASSIGN_OR_RETURN(const PemPair pem, FormatSignedKey(signed_key));
    files.push_back({role.key, pem.key, 0600});
    files.push_back({role.cert, pem.cert, 0644});
  }
  MOEBIUS_RETURN_IF_ERROR(WriteAll(files, options.existing));
  return folder;
}

absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::string pem, ReadPem(path));
  auto facts = DescribeCertificate(pem);
  if (!facts.ok()) return WithContext(facts.status(), path);
  return facts;
}

}  // namespace moebius
