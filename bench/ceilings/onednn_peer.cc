// SPDX-License-Identifier: Apache-2.0
// oneDNN as a peer of `moebius bench experts` (bench/README.md has the questions): the products of
// one tier, MOEBIUS_BENCH_TIER, in the type that the tier is fast in, on OMP_NUM_THREADS threads.
//
//   build/release/bin/moebius bench experts --peer build/release/bin/onednn_peer
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/base/clock.h"
#include "moebius/base/random.h"
#include "moebius/tensor/bf16.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace moebius {
namespace {

using dnnl::memory;

constexpr std::string_view kUnsupported = "unsupported";

// The instruction set and the type of a tier.
struct TierChoice {
  dnnl::cpu_isa isa = dnnl::cpu_isa::all;
  memory::data_type type = memory::data_type::bf16;
};

bool FindTier(std::string_view name, TierChoice* choice) {
  static const std::map<std::string_view, TierChoice> kTiers = {
      {"avx2", {dnnl::cpu_isa::avx2, memory::data_type::f32}},
      {"avx512", {dnnl::cpu_isa::avx512_core, memory::data_type::f32}},
      {"avx512bf16", {dnnl::cpu_isa::avx512_core_bf16, memory::data_type::bf16}},
      {"amx", {dnnl::cpu_isa::avx512_core_amx, memory::data_type::bf16}},
  };
  const auto found = kTiers.find(name);
  if (found == kTiers.end()) return false;
  *choice = found->second;
  return true;
}

// One product: rows [M, K] of weights [K, N], in the layouts that oneDNN prefers.
class Product {
 public:
  Product(const dnnl::engine& engine, memory::data_type type, int64_t num_rows, int64_t depth,
          int64_t width)
      : Product(engine, {{num_rows, depth}, type, memory::format_tag::any},
                {{depth, width}, type, memory::format_tag::any},
                {{num_rows, width}, type, memory::format_tag::any}) {}

  memory MakeWeights(const dnnl::engine& engine) const {
    return memory(primitive_desc_.weights_desc(), engine);
  }
  const memory& rows() const { return rows_; }
  const memory& out() const { return out_; }

  void Run(dnnl::stream& stream, const memory& weights) {
    primitive_.execute(stream,
                       {{DNNL_ARG_SRC, rows_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, out_}});
  }

 private:
  Product(const dnnl::engine& engine, const memory::desc& rows, const memory::desc& weights,
          const memory::desc& out)
      : primitive_desc_(dnnl::matmul::desc(rows, weights, out), engine),
        primitive_(primitive_desc_),
        rows_(primitive_desc_.src_desc(), engine),
        out_(primitive_desc_.dst_desc(), engine) {}

  dnnl::matmul::primitive_desc primitive_desc_;
  dnnl::matmul primitive_;
  memory rows_;
  memory out_;
};

// Normally distributed values, whatever the layout.
void Fill(const memory& target, memory::data_type type) {
  Random random(1);
  const size_t size = target.get_desc().get_size();
  if (type == memory::data_type::f32) {
    float* const values = static_cast<float*>(target.get_data_handle());
    for (size_t i = 0; i < size / sizeof(float); ++i) values[i] = random.Normal();
  } else {
    Bf16* const values = static_cast<Bf16*>(target.get_data_handle());
    for (size_t i = 0; i < size / sizeof(Bf16); ++i) values[i] = ToBf16(random.Normal());
  }
}

void Copy(const memory& source, const memory& target) {
  std::memcpy(target.get_data_handle(), source.get_data_handle(), source.get_desc().get_size());
}

template <typename Body>
double MeanSeconds(double duration, Body body) {
  body();  // makes what is made once
  const Clock& clock = Clock::Monotonic();
  const absl::Duration start = clock.Now();
  int64_t runs = 0;
  double taken = 0;
  do {
    body();
    ++runs;
    taken = absl::ToDoubleSeconds(clock.Now() - start);
  } while (taken < duration);
  return taken / static_cast<double>(runs);
}

// The experts of one layer. Each has weights of its own, so that few rows find them cold.
class Layer {
 public:
  struct Shape {
    int64_t hidden_size = 0;
    int64_t intermediate_size = 0;
    int64_t num_experts = 0;
    bool operator==(const Shape& other) const = default;
  };

  Layer(const dnnl::engine& engine, memory::data_type type, const Shape& shape)
      : engine_(engine), type_(type), shape_(shape) {
    const Product up = UpProduct(1), down = DownProduct(1);
    for (int64_t expert = 0; expert < shape.num_experts; ++expert) {
      ups_.push_back(up.MakeWeights(engine));
      downs_.push_back(down.MakeWeights(engine));
      // The same values in every expert: what a product costs does not depend on them.
      if (expert == 0) {
        Fill(ups_.back(), type);
        Fill(downs_.back(), type);
      } else {
        Copy(ups_.front(), ups_.back());
        Copy(downs_.front(), downs_.back());
      }
    }
  }

  const Shape& shape() const { return shape_; }

  // Mean seconds of a call of rows that visit top_k different experts each.
  double Measure(int64_t num_rows, int64_t top_k, double duration) {
    std::vector<std::vector<int64_t>> routings;  // rows by expert
    for (uint64_t seed = 0; seed < 4; ++seed) routings.push_back(Route(num_rows, top_k, seed));
    dnnl::stream stream(engine_);
    size_t next = 0;
    return MeanSeconds(duration, [&] {
      const std::vector<int64_t>& rows_of = routings[next++ % routings.size()];
      for (size_t expert = 0; expert < rows_of.size(); ++expert) {
        if (rows_of[expert] > 0) RunExpert(stream, expert, rows_of[expert]);
      }
      stream.wait();
    });
  }

 private:
  // Gate and up side by side. The product of both, an elementwise pass, is left out: in oneDNN's
  // favour, as are the rows' way to their expert and back.
  Product UpProduct(int64_t num_rows) const {
    return Product(engine_, type_, num_rows, shape_.hidden_size, 2 * shape_.intermediate_size);
  }
  Product DownProduct(int64_t num_rows) const {
    return Product(engine_, type_, num_rows, shape_.intermediate_size, shape_.hidden_size);
  }

  std::vector<int64_t> Route(int64_t num_rows, int64_t top_k, uint64_t seed) const {
    std::vector<int64_t> rows_of(static_cast<size_t>(shape_.num_experts));
    std::vector<size_t> experts(rows_of.size());
    std::iota(experts.begin(), experts.end(), 0);
    Random random(seed);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (size_t choice = 0; choice < static_cast<size_t>(top_k); ++choice) {
        std::swap(experts[choice], experts[choice + random.Below(experts.size() - choice)]);
        ++rows_of[experts[choice]];
      }
    }
    return rows_of;
  }

  void RunExpert(dnnl::stream& stream, size_t expert, int64_t num_rows) {
    auto found = products_.find(num_rows);
    if (found == products_.end()) {
      found =
          products_.emplace(num_rows, std::make_pair(UpProduct(num_rows), DownProduct(num_rows)))
              .first;
      Fill(found->second.first.rows(), type_);
      Fill(found->second.second.rows(), type_);
    }
    found->second.first.Run(stream, ups_[expert]);
    found->second.second.Run(stream, downs_[expert]);
  }

  const dnnl::engine engine_;
  const memory::data_type type_;
  const Shape shape_;
  std::vector<memory> ups_, downs_;
  std::map<int64_t, std::pair<Product, Product>> products_;  // by rows
};

class Peer {
 public:
  explicit Peer(const TierChoice& choice)
      : type_(choice.type), engine_(dnnl::engine::kind::cpu, 0) {}

  std::string Answer(const std::string& question) {
    std::istringstream words(question);
    std::string what, type;
    words >> what >> type;
    double seconds = 0;
    if (what == "gemm" && type == "bf16") {
      seconds = Gemm(words);
    } else if (what == "expert_ffn" && type == "bf16") {
      seconds = ExpertFfn(words);
    }
    if (seconds <= 0) return std::string(kUnsupported);
    std::ostringstream answer;
    answer.precision(9);
    answer << std::fixed << seconds;
    return answer.str();
  }

 private:
  // What the last question about a GEMM was about; the next is usually the same.
  struct GemmData {
    std::vector<int64_t> shape;
    Product product;
    memory weights;
  };

  double Gemm(std::istringstream& words) {
    int64_t num_rows = 0, depth = 0, width = 0;
    double duration = 0;
    if (!(words >> num_rows >> depth >> width >> duration)) return 0;
    const std::vector<int64_t> shape = {num_rows, depth, width};
    if (gemm_ == nullptr || gemm_->shape != shape) {
      gemm_ = std::make_unique<GemmData>(
          GemmData{shape, Product(engine_, type_, num_rows, depth, width), {}});
      gemm_->weights = gemm_->product.MakeWeights(engine_);
      Fill(gemm_->weights, type_);
      Fill(gemm_->product.rows(), type_);
    }
    dnnl::stream stream(engine_);
    return MeanSeconds(duration, [&] {
      gemm_->product.Run(stream, gemm_->weights);
      stream.wait();
    });
  }

  double ExpertFfn(std::istringstream& words) {
    int64_t num_rows = 0, top_k = 0;
    Layer::Shape shape;
    double duration = 0;
    if (!(words >> num_rows >> shape.hidden_size >> shape.intermediate_size >> shape.num_experts >>
          top_k >> duration)) {
      return 0;
    }
    if (layer_ == nullptr || !(layer_->shape() == shape)) {
      layer_ = std::make_unique<Layer>(engine_, type_, shape);
    }
    return layer_->Measure(num_rows, top_k, duration);
  }

  const memory::data_type type_;
  const dnnl::engine engine_;
  std::unique_ptr<GemmData> gemm_;
  std::unique_ptr<Layer> layer_;
};

int Serve() {
  const char* const tier = std::getenv("MOEBIUS_BENCH_TIER");
  TierChoice choice;
  const bool is_known = tier != nullptr && FindTier(tier, &choice);
  if (is_known) dnnl::set_max_cpu_isa(choice.isa);
  const dnnl_version_t* const version = dnnl_version();
  std::cout << "oneDNN " << version->major << "." << version->minor << "." << version->patch
            << std::endl;
  Peer peer(choice);
  for (std::string question; std::getline(std::cin, question);) {
    std::cout << (is_known ? peer.Answer(question) : std::string(kUnsupported)) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace moebius

int main() { return moebius::Serve(); }
