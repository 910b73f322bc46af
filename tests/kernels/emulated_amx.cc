// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>

#include "moebius/base/check.h"
#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/cpu/attention_tiles.h"
#include "moebius/kernels/cpu/fp8_tile_sum.h"
#include "moebius/kernels/cpu/tier_kernels.h"
#include "moebius/kernels/cpu/tiers.h"
#include "moebius/kernels/cpu/tile_block_sum.h"
#include "moebius/kernels/math.h"
#include "moebius/tensor/bf16.h"
#include "tests/kernels/emulated_tiers.h"
#include "tests/kernels/emulated_vector.h"

namespace moebius {
namespace {

// The tile unit in plain code, as Intel's manual states TDPBF16PS. Its state is the thread's; use
// without a configuration, or with one already there, is a CHECK.
class EmulatedUnit {
 public:
  static void Configure(const TileConfig& config) {
    MOEBIUS_CHECK(!State().is_configured);
    State() = {};
    State().is_configured = true;
    State().config = config;
  }
  static void Release() { Configured().is_configured = false; }

  template <int tile>
  static void Zero() {
    std::memset(Configured().bytes[tile], 0, sizeof(Configured().bytes[tile]));
  }
  template <int tile>
  static void Load(const void* base, int64_t stride_bytes) {
    Zero<tile>();
    for (int row = 0; row < Configured().config.num_rows[tile]; ++row) {
      std::memcpy(Row(tile, row), static_cast<const uint8_t*>(base) + row * stride_bytes,
                  Configured().config.row_bytes[tile]);
    }
  }
  template <int tile>
  static void Store(void* base, int64_t stride_bytes) {
    for (int row = 0; row < Configured().config.num_rows[tile]; ++row) {
      std::memcpy(static_cast<uint8_t*>(base) + row * stride_bytes, Row(tile, row),
                  Configured().config.row_bytes[tile]);
    }
  }
  template <int sums, int rows, int weights>
  static void AddBlock() {
    const TileConfig& config = Configured().config;
    MOEBIUS_CHECK_EQ(config.num_rows[sums], config.num_rows[rows]);
    MOEBIUS_CHECK_EQ(config.row_bytes[sums], config.row_bytes[weights]);
    MOEBIUS_CHECK_EQ(config.row_bytes[rows] / 4, config.num_rows[weights]);
    const int num_pairs = config.row_bytes[rows] / 4;
    for (int row = 0; row < config.num_rows[sums]; ++row) {
      for (int column = 0; column < config.row_bytes[sums] / 4; ++column) {
        float even = 0;
        float odd = 0;
        for (int pair = 0; pair < num_pairs; ++pair) {
          even = FusedMultiplyAdd(Element(rows, row, 2 * pair), Element(weights, pair, 2 * column),
                                  even);
          odd = FusedMultiplyAdd(Element(rows, row, 2 * pair + 1),
                                 Element(weights, pair, 2 * column + 1), odd);
        }
        float sum;
        std::memcpy(&sum, Row(sums, row) + column * 4, sizeof(sum));
        sum = Add(sum, Add(even, odd));
        std::memcpy(Row(sums, row) + column * 4, &sum, sizeof(sum));
      }
    }
  }

 private:
  struct Registers {
    bool is_configured = false;
    TileConfig config;
    uint8_t bytes[kNumTiles][kTileRows * kTileRowBytes] = {};
  };
  static Registers& State() {
    thread_local Registers registers;
    return registers;
  }
  static Registers& Configured() {
    MOEBIUS_CHECK(State().is_configured);
    return State();
  }
  static uint8_t* Row(int tile, int row) { return Configured().bytes[tile] + row * kTileRowBytes; }
  static float Element(int tile, int row, int index) {
    Bf16 value;
    std::memcpy(&value, Row(tile, row) + index * 2, sizeof(value));
    return ToFloat(value);
  }
  // Rounded once, denormals flushed in and out.
  static float Add(float x, float y) { return FusedMultiplyAdd(x, 1.0f, y); }
};

uint64_t executed = 0;

void BlockSum(const BlockSumCall& call) {
  CountExecution(&executed);
  RunTileBlockSum<EmulatedVector, EmulatedUnit>(call);
}

void Fp8BlockSum(const Fp8BlockSumCall& call) {
  CountExecution(&executed);
  RunFp8TileBlockSum<EmulatedVector, EmulatedUnit>(call);
}

void FloatBlockSum(const FloatBlockSumCall& call) {
  CountExecution(&executed);
  RunFloatBlockSum<WideTiles<FloatWeights<EmulatedVector>>>(call);
}

Kernels MakeAmx() {
  Kernels kernels;
  kernels.prepare_rows = CopyRowBlocks;
  kernels.block_sum = BlockSum;
  kernels.fp8_block_sum = Fp8BlockSum;
  kernels.decode_fp8 = DecodeFp8Portable;
  kernels.decode_name = "portable";
  kernels.widen_rows = WidenRowBlocks<EmulatedVector>;
  kernels.float_block_sum = FloatBlockSum;
  kernels.accumulate_scaled = AccumulateScaledRow<EmulatedVector>;
  kernels.attention = &TileAttentionKernels<EmulatedVector, EmulatedUnit>::kKernels;
  kernels.executed = &executed;
  kernels.tier = Tier::kAmx;
  kernels.pair_order = PairOrder::kAdjacent;
  kernels.prepared_block_bytes = kBlockDepth * sizeof(uint16_t);
  kernels.tile_rows = kTileRows;
  return kernels;
}

}  // namespace

namespace testing {

const Kernels& EmulatedAmx() {
  static const Kernels kernels = MakeAmx();
  return kernels;
}

}  // namespace testing
}  // namespace moebius
