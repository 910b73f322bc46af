// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// weight · values, one term of a chain.
struct SumTerm {
  float weight = 0;
  const Bf16* values = nullptr;  // [width]
};

/// out = bf16(Σ weight·values): an fp32 chain of fused multiply-adds from +0 in the order of
/// `terms`, rounded once. The one sum of a combine group, wherever it is computed.
/// Float environment of the executor; thread-safe, allocates nothing.
void SumTerms(const Kernels& kernels, absl::Span<const SumTerm> terms, absl::Span<Bf16> out);

/// Replies of the services → rows of the layer's output, by the plan that dispatched them: each
/// combine group is a chain as in SumTerms, rounded to bf16; groups ascending and then slices are
/// added in fp32 from +0; one last rounding. The same bits for every placement and replica choice.
///
/// `replies[s]` bf16 [plan.services()[s].num_reply_rows, H]; `out` bf16 [plan.num_rows(), H].
/// A refused row becomes zeros. Float environment of the executor; thread-safe.
void Combine(const Kernels& kernels, const DispatchPlan& plan,
             absl::Span<const MutableBf16Rows> replies, MutableBf16Rows out);

/// The same over the executor's threads, by rows; on an executor thread.
void Combine(Executor& executor, const Kernels& kernels, const DispatchPlan& plan,
             absl::Span<const MutableBf16Rows> replies, MutableBf16Rows out);

}  // namespace moebius
