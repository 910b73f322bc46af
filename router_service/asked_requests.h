// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "moebius/api/generate.h"
#include "router_service/generate_stream.h"

namespace moebius {

/// The requests that wait or run, by id: one that is asked again is followed, not run twice. Holds
/// no request back from its end. Not thread-safe.
class AskedRequests {
 public:
  /// A stream of the request that has this request's id and asks the same; null when there is none
  /// with that id. ALREADY_EXISTS when it asks something else, or cannot be followed any more.
  absl::StatusOr<std::shared_ptr<GenerateStream>> Follow(const std::string& request_id,
                                                         const GenerateRequest& request) const;
  void Add(const std::string& request_id, const GenerateRequest& request,
           const std::shared_ptr<GenerateStream>& stream) {
    asked_[request_id] = Asked{request, stream};
  }
  void Remove(const std::string& request_id) { asked_.erase(request_id); }

 private:
  struct Asked {
    GenerateRequest request;
    std::weak_ptr<GenerateStream> stream;
  };
  std::map<std::string, Asked> asked_;
};

}  // namespace moebius
