// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

/// What every program calls first. A program that links this gets two more things, before any
/// library is initialised:
/// 1. Closed standard streams become /dev/null, so that no file gets their numbers (the weights
///    would be read as standard input, an answer written into a file). Standard output then refuses
///    to be written to, as a closed one does.
/// 2. No memory and no thread end the process with kExitFatal after a sentence that says what to
///    do: libraries allocate before `main`.
/// The call adds:
/// 1. A file that may not grow (ulimit -f) is a failed write, not a signal.
/// 2. A broken invariant ends the process with kExitFatal.
/// 3. Locks are not searched for cycles. The distribution's absl does that at every lock, with a
///    stack trace, in release builds too: tests do it, programs have no time for it.
/// 4. Freed memory serves the next message (freed_memory.h).
void PrepareProcess();

/// `exit_code` once standard output is written; where that fails a sentence, and kExitFailed in
/// place of kExitOk. A failure that has been reported already (`exit_code` tells) is not repeated.
int FinishOutput(int exit_code);

}  // namespace moebius
