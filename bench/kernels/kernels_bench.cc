// SPDX-License-Identifier: Apache-2.0
// Speed of the block sum beside its ceilings of the same run: read bandwidth, and oneDNN's fp32
// product of the same shape where it is there. Data are normal numbers; the weights of one row walk
// over several matrices that no cache holds together.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

#include "moebius/base/executor.h"
#include "moebius/base/random.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/expert_ffn.h"
#include "moebius/tensor/bf16.h"

#ifdef MOEBIUS_HAVE_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif

namespace moebius {
namespace {

constexpr int64_t kWidth = 2048;   // K and N of the large product
constexpr int64_t kMatrices = 16;  // 128 MiB of bf16 weights: beyond the last-level cache

RowBatch<Bf16> NormalRows(int64_t num_rows, int64_t width, uint64_t seed) {
  RowBatch<Bf16> rows(num_rows, width);
  Random random(seed);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (Bf16& value : rows.rows().span(r)) value = ToBf16(random.Normal());
  }
  return rows;
}

// Of one pair order, made at the first use.
const std::vector<PackedMatrix>& Weights(PairOrder order) {
  static std::vector<PackedMatrix> by_order[2];
  std::vector<PackedMatrix>& matrices = by_order[static_cast<size_t>(order)];
  if (matrices.empty()) {
    const RowBatch<Bf16> weights = NormalRows(kWidth, kWidth, 1);
    for (int64_t i = 0; i < kMatrices; ++i) {
      matrices.push_back(PackedMatrix::Pack(weights.rows(), order));
    }
  }
  return matrices;
}

void ReportRates(benchmark::State& state, int64_t num_rows, int64_t depth, int64_t width,
                 size_t weight_bytes) {
  const double products = 2.0 * static_cast<double>(num_rows * depth * width);
  state.counters["GFLOP/s"] =
      benchmark::Counter(products * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["weights_GB/s"] = benchmark::Counter(
      static_cast<double>(weight_bytes) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void BlockGemm(benchmark::State& state, Tier tier) {
  const Kernels& kernels = *FindKernels(tier);
  const int64_t num_rows = state.range(0);
  const int num_threads = static_cast<int>(state.range(1));
  const std::vector<PackedMatrix>& matrices = Weights(kernels.pair_order);
  const RowBatch<Bf16> rows = NormalRows(num_rows, kWidth, 2);
  RowBatch<float> out(num_rows, kWidth);
  Executor executor(num_threads);
  size_t next = 0;
  executor.Run([&] {
    for (auto _ : state) {
      ParallelMatMul(executor, kernels, rows.rows(), matrices[next], out.rows());
      next = (next + 1) % matrices.size();
    }
  });
  ReportRates(state, num_rows, kWidth, kWidth, matrices[0].bytes());
}

// A product of the demo's size: what a call costs beside its work.
void SmallRow(benchmark::State& state, Tier tier) {
  const Kernels& kernels = *FindKernels(tier);
  const RowBatch<Bf16> weights = NormalRows(192, 192, 1);
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels.pair_order);
  const RowBatch<Bf16> rows = NormalRows(1, 192, 2);
  RowBatch<float> out(1, 192);
  Executor executor(1);
  executor.Run([&] {
    for (auto _ : state) MatMul(kernels, rows.rows(), matrix, out.rows());
  });
  ReportRates(state, 1, 192, 192, matrix.bytes());
}

// One layer's experts: H = 2048, I = 1024, 16 experts, 8 per row, weights cold.
void ExpertFfn(benchmark::State& state, Tier tier) {
  constexpr int64_t kHidden = 2048;
  constexpr int64_t kIntermediate = 1024;
  constexpr int64_t kExperts = 16;
  constexpr int64_t kTopK = 8;
  const Kernels& kernels = *FindKernels(tier);
  const int64_t num_rows = state.range(0);
  const RowBatch<Bf16> up = NormalRows(kIntermediate, kHidden, 1);
  const RowBatch<Bf16> down = NormalRows(kHidden, kIntermediate, 2);
  std::vector<PackedExpert> experts;
  for (int64_t e = 0; e < kExperts; ++e) {
    experts.push_back(PackedExpert::Pack(up.rows(), up.rows(), down.rows(), kernels.pair_order));
  }
  std::vector<std::vector<int32_t>> indices(kExperts);
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t c = 0; c < kTopK; ++c) {
      indices[static_cast<size_t>((t * 5 + c * 3) % kExperts)].push_back(static_cast<int32_t>(t));
    }
  }
  const RowBatch<Bf16> rows = NormalRows(num_rows, kHidden, 3);
  std::vector<RowBatch<Bf16>> outs;
  std::vector<ExpertBatch> batches;
  outs.reserve(kExperts);
  size_t touched_bytes = 0;
  for (size_t e = 0; e < kExperts; ++e) {
    outs.emplace_back(static_cast<int64_t>(indices[e].size()), kHidden);
    if (indices[e].empty()) continue;
    batches.push_back(ExpertBatch{&experts[e], indices[e], outs.back().rows()});
    touched_bytes += experts[e].bytes();
  }
  Executor executor(static_cast<int>(state.range(1)));
  ExpertScratch scratch;
  executor.Run([&] {
    for (auto _ : state) ForwardExperts(executor, kernels, batches, rows.rows(), scratch);
  });
  ReportRates(state, num_rows * kTopK, kHidden, 3 * kIntermediate, touched_bytes);
}

// The ceiling of few rows: reads 256 MiB with all threads.
void ReadBandwidth(benchmark::State& state) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const Buffer buffer(static_cast<size_t>(kBytes));
  const uint64_t* const words = static_cast<const uint64_t*>(buffer.data());
  Executor executor(static_cast<int>(state.range(0)));
  std::vector<uint64_t> sums(64 * 8);
  executor.Run([&] {
    for (auto _ : state) {
      executor.ParallelFor(64, [&](int64_t part, int) {
        constexpr int64_t kWords = kBytes / 64 / 8;
        const uint64_t* const p = words + part * kWords;
        uint64_t sum[8] = {};
        for (int64_t i = 0; i < kWords; i += 8) {
#pragma GCC unroll 8
          for (int64_t j = 0; j < 8; ++j) sum[j] += p[i + j];
        }
        for (int64_t j = 0; j < 8; ++j) sums[static_cast<size_t>(part * 8)] += sum[j];
      });
      benchmark::DoNotOptimize(sums.data());
    }
  });
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(kBytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

#ifdef MOEBIUS_HAVE_DNNL
// The ceiling of many rows, on oneDNN's own threads (OMP_NUM_THREADS).
void DnnlSgemm(benchmark::State& state) {
  const int64_t num_rows = state.range(0);
  Random random(1);
  std::vector<float> a(static_cast<size_t>(num_rows * kWidth));
  std::vector<float> b(static_cast<size_t>(kWidth * kWidth));
  std::vector<float> c(static_cast<size_t>(num_rows * kWidth));
  for (float& value : a) value = random.Normal();
  for (float& value : b) value = random.Normal();
  for (auto _ : state) {
    dnnl_sgemm('N', 'N', num_rows, kWidth, kWidth, 1.0f, a.data(), kWidth, b.data(), kWidth, 0.0f,
               c.data(), kWidth);
  }
  ReportRates(state, num_rows, kWidth, kWidth, b.size() * sizeof(float));
}
#endif

void RegisterAll() {
  const auto two_threads = [](benchmark::internal::Benchmark* bench) {
    bench->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  for (const int threads : {1, 2}) {
    two_threads(benchmark::RegisterBenchmark("read_bandwidth", ReadBandwidth)->Arg(threads));
  }
  for (const Tier tier : HostTiers()) {
    const std::string name(TierName(tier));
    two_threads(benchmark::RegisterBenchmark(("small_row/" + name).c_str(),
                                             [tier](benchmark::State& s) { SmallRow(s, tier); }));
    for (const int rows : {1, 2, 4, 8, 16, 32, 128, 512}) {
      for (const int threads : {1, 2}) {
        two_threads(
            benchmark::RegisterBenchmark(("block_gemm/" + name).c_str(), [tier](
                                                                             benchmark::State& s) {
              BlockGemm(s, tier);
            })->Args({rows, threads}));
      }
    }
    if (tier == Tier::kPortable) continue;
    for (const int rows : {1, 8, 32, 128, 512}) {
      two_threads(
          benchmark::RegisterBenchmark(("expert_ffn/" + name).c_str(), [tier](benchmark::State& s) {
            ExpertFfn(s, tier);
          })->Args({rows, 2}));
    }
  }
#ifdef MOEBIUS_HAVE_DNNL
  for (const int rows : {1, 8, 32, 128, 512}) {
    two_threads(benchmark::RegisterBenchmark("onednn_f32", DnnlSgemm)->Arg(rows));
  }
#endif
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  moebius::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("kernels", moebius::KernelInfo(moebius::BestKernels()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
