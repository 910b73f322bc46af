// SPDX-License-Identifier: Apache-2.0
#include "router_service/ready_lines.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace moebius {

ReadyLines::ReadyLines(std::string name, ProcessNotices& notices)
    : name_(std::move(name)), notices_(notices) {}

void ReadyLines::Waiting(const std::string& why) {
  if (why.empty() || why == std::exchange(why_, why)) return;
  notices_.Announce(
      absl::StrCat("waiting role=router name=", name_, " pid=", getpid(), " why=", why));
}

void ReadyLines::Ready(int64_t loaded_bytes, absl::Duration since_begin) {
  why_.clear();
  notices_.Announce(absl::StrFormat("ready role=router name=%s pid=%d loaded_bytes=%d seconds=%.3f",
                                    name_, getpid(), loaded_bytes,
                                    absl::ToDoubleSeconds(since_begin)));
}

}  // namespace moebius
