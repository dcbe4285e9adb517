// The order of training: counter-based shuffle, packs formed in fixed windows of the global order before sharding, micro-batches
// for one data-parallel rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/packed.h"
#include "recipes/data/dataset.h"

namespace retort::data {

// One micro-batch of one rank. R = positions with targets. May be empty (num_tokens 0, R 0): the rank still takes part in every
// collective of the step.
struct MicroBatch {
  models::PackedTokens tokens;
  at::Tensor predict_positions;  // [R] int64, increasing: rows of the model's output whose next token is a target
  at::Tensor targets;            // [R] int64, the token after each predict position
  std::vector<Sample> samples;   // in order of the sequences in `tokens` (fields, origins)
  int64_t num_targets() const { return targets.defined() ? targets.numel() : 0; }
};

MicroBatch make_micro_batch(std::vector<Sample> samples);

struct BatchOptions {
  uint64_t seed = 42;
  int64_t rows_per_micro_batch = 8;    // per_device_train_batch_size: packs (packing) or samples in a micro-batch
  int64_t tokens_per_micro_batch = 0;  // tokens_per_batch: instead of rows, as many packs/samples as fit
  int64_t micro_batches = 1;           // gradient_accumulation_steps
  int64_t max_length = 1024;
  bool packing = true;
  bool shuffle = true;
  int64_t dp_rank = 0, dp_size = 1;
};

// What must be stored to continue: the number of consumed global batches and where that is.
struct BatchCursor {
  int64_t epoch = 0;
  int64_t packs_consumed = 0;   // of this epoch, over all ranks
  int64_t total_steps = 0;
  template <class A>
  void serialize(A& archive) { archive(epoch, packs_consumed, total_steps); }
};

// Endless stream of optimizer steps over a dataset. Pack i of a global batch goes to dp rank i mod dp_size. All ranks see the same
// global order; nothing depends on time. The last, short global batch of an epoch is used as it is (some ranks may get empty
// micro-batches). Pure read side: next() runs ahead freely (prefetch); only the cursor that came with a consumed step is saved.
class BatchStream {
 public:
  BatchStream(std::shared_ptr<const Dataset> dataset, BatchOptions options, BatchCursor start = {});
  ~BatchStream();
  struct Step {
    std::vector<MicroBatch> micro_batches;  // exactly options.micro_batches
    BatchCursor after;                      // store this once the step has been consumed
    double epoch = 0;                       // fractional, after this step
  };
  Step next();
  // Steps of one epoch (reads every sample's length once; used for num_train_epochs).
  int64_t steps_per_epoch();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Evaluation: every sample of the set exactly once over all ranks (sample i on rank i mod dp_size), in file order.
std::vector<MicroBatch> eval_batches(const Dataset& dataset, const BatchOptions& options);

}  // namespace retort::data
