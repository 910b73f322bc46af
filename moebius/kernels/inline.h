// SPDX-License-Identifier: Apache-2.0
#pragma once

/// For functions of headers that a tier's source file includes: a copy that the linker could choose
/// for everyone must never come from a file with its own instruction set.
#define MOEBIUS_ALWAYS_INLINE [[gnu::always_inline]] inline
