// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/streaming_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstring>

namespace moebius {
namespace {

#ifdef __SSE2__
constexpr size_t kLineBytes = 64;
// Below this the reader gains more by finding the bytes in a cache.
constexpr size_t kMinStreamedBytes = 16 << 10;

// `target` at a line's begin.
void StreamLines(uint8_t* target, const uint8_t* source, size_t num_lines) {
  for (size_t line = 0; line < num_lines; ++line) {
    const auto* const from = reinterpret_cast<const __m128i*>(source + line * kLineBytes);
    auto* const to = reinterpret_cast<__m128i*>(target + line * kLineBytes);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  // Streamed stores are not ordered with others.
  _mm_sfence();
}
#endif

}  // namespace

void StreamingCopy(uint8_t* target, const uint8_t* source, size_t size) {
#ifdef __SSE2__
  if (size >= kMinStreamedBytes) {
    const size_t before_line = -reinterpret_cast<uintptr_t>(target) % kLineBytes;
    std::memcpy(target, source, before_line);
    const size_t num_lines = (size - before_line) / kLineBytes;
    StreamLines(target + before_line, source + before_line, num_lines);
    const size_t done = before_line + num_lines * kLineBytes;
    target += done;
    source += done;
    size -= done;
  }
#endif
  if (size > 0) std::memcpy(target, source, size);
}

}  // namespace moebius
