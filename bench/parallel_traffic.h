// What a training step sends, counted from sizes: pure arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "parallel/layout.h"

namespace retort::bench {

enum class Operation { kAllReduce, kReduceScatter, kAllGather, kMessage };
enum class Backend {
  kGloo,      // ours: c10d's Gloo for all-reduce and all-gather, reduce-scatter from its messages
  kC10dGloo,  // c10d's Gloo for all of it: its reduce-scatter is an all-reduce
  kNccl,      // rings
};

// `count` operations in a step, of a tensor of `bytes` (whole: what is reduced, what is gathered)
// each.
struct Traffic {
  std::string what, group;
  Operation operation;
  int64_t ranks = 1;
  double bytes = 0;
  double count = 0;

  // Bytes that this rank sends. Among n ranks an all-reduce sends 2 (n-1)/n of the bytes,
  // reduce-scatter and all-gather (n-1)/n; a message sends all of them.
  double sent(Backend backend) const;
};

struct StepSizes {
  parallel::Layout layout;  // virtual_pp 1
  parallel::Coordinate at;
  int64_t tokens = 0;         // of a micro-batch on one dp rank
  int64_t micro_batches = 1;  // of a step on one dp rank
  // Elements that this rank holds, with the padding of its buckets.
  double parameters = 0;
  // Elements of the tensor in which tp sums the gradients that each rank has a part of.
  double partial_copies = 0;
};

// What a step sends, in its order. The model is float32, untied, without gradient checkpointing.
std::vector<Traffic> step_traffic(const models::ModelConfig& config, const StepSizes& sizes);
double total_sent(const std::vector<Traffic>& traffic, Backend backend);

}  // namespace retort::bench
