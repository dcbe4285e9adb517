// The parallel layout of one role, and which ranks form which groups. Pure functions: no process,
// no device.
//
// Ranks are numbered as in Megatron-LM, by rank = tp + TP * (dp + DP * pp): neighbouring ranks
// differ in tp, the ranks of different pipeline stages lie farthest apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"

namespace retort::parallel {

enum class Device { kCpu, kCuda };

// A recipe's `world:` block of one role.
struct Layout {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  bool sequence_parallel = false;
  int64_t virtual_pp = 1;
  bool distributed_optimizer = false;
  Device device = Device::kCpu;
  int64_t threads = 0;  // OpenMP threads of each process; 0: cores of the host / processes on it

  template <class V>
  void fields(V& visit) {
    visit("tp", tp, "tensor parallel size");
    visit("pp", pp, "pipeline parallel size");
    visit("dp", dp, "data parallel size (serving roles: independent replicas)");
    visit("sequence_parallel", sequence_parallel,
          "split norms and residuals over tp by tokens: less activation memory; needs tp > 1");
    visit(
        "virtual_pp", virtual_pp,
        "layer chunks of each pipeline stage (interleaved schedule): smaller bubble; needs pp > 1");
    visit("distributed_optimizer", distributed_optimizer,
          "each dp rank keeps the optimizer state of its part of the parameters only (ZeRO-1); "
          "needs dp > 1");
    visit("device", device, "cpu | cuda");
    visit("threads", threads, "OpenMP threads of each process; 0: cores / processes on the host");
  }
  // Throws kInvalidArgument naming the field for sizes out of range and options without effect.
  void validate() const;
  int64_t world_size() const { return tp * pp * dp; }
};

struct Coordinate {
  int64_t tp = 0;
  int64_t dp = 0;
  int64_t pp = 0;
  bool operator==(const Coordinate&) const = default;
};

Coordinate coordinate_of(const Layout& layout, int64_t rank);
int64_t rank_of(const Layout& layout, Coordinate coordinate);

// All groups along the named axes ("tp", "dp", "pp", "tp-pp", "dp-tp", ...): each a list of global
// ranks in increasing order, the groups ordered by their first rank. kInvalidArgument for an
// unknown axis.
std::vector<std::vector<int>> rank_groups(const Layout& layout, std::string_view axes);

// The ranks of each pipeline's first and last stage, {first, last} or {only}: when the embedding
// and the head are one tied weight, these two hold it and sum its gradient.
std::vector<std::vector<int>> embedding_groups(const Layout& layout);

}  // namespace retort::parallel

template <>
struct retort::EnumNames<retort::parallel::Device> {
  static constexpr std::array<std::pair<std::string_view, retort::parallel::Device>, 2> values{
      {{"cpu", retort::parallel::Device::kCpu}, {"cuda", retort::parallel::Device::kCuda}}};
};
