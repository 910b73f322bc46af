// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moebius/transport/frame/frame_header.h"

namespace moebius {

/// The messages of the step protocol. Values are part of the wire format; never renumber.
/// Unless said otherwise the key has term, step and attempt of the step, and layer 0.
inline constexpr FrameKind kStepPlanKind{16};        // lead ▸ participant: reserve for this step
inline constexpr FrameKind kStepReadyKind{17};       // the answer: reserved, or why not
inline constexpr FrameKind kStepEndKind{18};         // lead ▸ participant: commit or abort
inline constexpr FrameKind kStepEndedKind{19};       // the answer
inline constexpr FrameKind kSessionEndKind{20};      // lead ▸ participant: free the session's KV
inline constexpr FrameKind kDispatchKind{21};        // row owner ▸ expert service, by layer
inline constexpr FrameKind kDispatchReplyKind{22};   // the answer, same layer and micro-batch
inline constexpr FrameKind kAttentionRowsKind{23};   // row owner ▸ attention rank, by layer
inline constexpr FrameKind kAttentionReplyKind{24};  // the answer, same layer
// Membership: step is the number of the assignment, attempt and layer are 0.
inline constexpr FrameKind kAssignSlotKind{26};  // router ▸ participant: which part it plays
inline constexpr FrameKind kSlotReadyKind{27};  // participant ▸ router: loading, ready or why not
// Rank ▸ rank, by layer and round. (25 never travelled.)
inline constexpr FrameKind kKvRequestKind{28};    // the keys and values of whole spans, please
inline constexpr FrameKind kKvReplyKind{29};      // the answer, same layer and round
inline constexpr FrameKind kQueryStatesKind{30};  // queries whose states over your spans I need
inline constexpr FrameKind kStateReplyKind{31};   // the answer, same layer and round
inline constexpr FrameKind kHeadRequestKind{32};  // some heads of queries or outputs; round: phase
inline constexpr FrameKind kHeadReplyKind{33};    // the answer, same layer and round
// Router ▸ attention rank, before it serves: how fast are link and kernel? step counts the probes.
inline constexpr FrameKind kProbeKind{34};
inline constexpr FrameKind kProbeReplyKind{35};  // the answer, same step

}  // namespace moebius
