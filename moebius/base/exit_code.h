// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

/// How the process ends; the same table for every program of the project.
enum ExitCode : int {
  kExitOk = 0,      // done; an answer that Ctrl-C cut short, too
  kExitFailed = 1,  // the request or the check failed
  kExitUsage = 2,   // the command line is wrong
  kExitHost = 3,    // configuration, or a host that cannot run this
  kExitModel = 4,   // the model's folder
  kExitBind = 5,    // an address is taken
  kExitFatal = 6,   // a broken invariant
};

}  // namespace moebius
