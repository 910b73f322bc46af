// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/api_key.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr size_t kDrawnBytes = 32;

absl::string_view TextOf(const unsigned char* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::string HashKey(absl::string_view key) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest);
  return absl::BytesToHexString(TextOf(digest, sizeof(digest)));
}

absl::StatusOr<std::string> DrawKey() {
  unsigned char bytes[kDrawnBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) {
    return absl::UnavailableError("this system gives no random bytes");
  }
  return absl::StrCat("moebius_", absl::WebSafeBase64Escape(TextOf(bytes, sizeof(bytes))));
}

}  // namespace moebius
