// The order of training: counter-based shuffle, packs formed in fixed windows of the global order
// before sharding, micro-batches for one data-parallel rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/ops/packed.h"
#include "recipes/data/cursor.h"
#include "recipes/data/dataset.h"
#include "recipes/data/step_stream.h"

namespace retort::data {

// One micro-batch of one rank. R = positions with targets. May be empty (num_tokens 0, R 0): the
// rank still takes part in every collective of the step.
struct MicroBatch {
  models::PackedTokens tokens;
  // [R] int64, increasing: rows of the model's output whose next token is a target
  at::Tensor predict_positions;
  at::Tensor targets;           // [R] int64, the token after each predict position
  std::vector<Sample> samples;  // in order of the sequences in `tokens` (fields, origins)
  int64_t num_targets() const { return targets.defined() ? targets.numel() : 0; }
};

// Lays the samples end to end; targets never cross from one sample to the next.
MicroBatch make_micro_batch(std::vector<Sample> samples);

// Packs are formed among this many consecutive samples of the global order, whatever the batch size
// and the layout.
inline constexpr int64_t kWindowSamples = 1024;

// Returns how many places of the epoch's order a batch stream's cursor has behind it: whole
// windows, one of which counts as soon as one of its packs was consumed.
int64_t used_places(const Cursor& cursor);

// The options of batches of samples, and of pairs (pair_batches.h, which says what is different
// there).
struct BatchOptions {
  uint64_t seed = 42;
  // per_device_train_batch_size: packs (packing), samples or pairs in a micro-batch
  int64_t rows_per_micro_batch = 8;
  // tokens_per_batch: instead of rows, as many packs, samples or pairs as fit; 0: rows
  int64_t tokens_per_micro_batch = 0;
  int64_t micro_batches = 1;  // gradient_accumulation_steps
  // batch_size_rampup_steps: over which a step's micro-batches grow from 1 to micro_batches
  int64_t rampup_steps = 0;
  int64_t max_length = 1024;  // tokens of a pack, and the most of a sample unless rows are cut
  bool packing = true;        // samples share packs; else each is a pack of its own
  bool shuffle = true;        // else the order of the files
  int64_t dp_rank = 0;
  int64_t dp_size = 1;

  // kInvalidArgument naming the option of the recipe.
  void validate() const;
  // The micro-batches of step `step` (counted from 0 over the whole run): 1 + (micro_batches - 1) *
  // step / rampup_steps, rounded down.
  int64_t micro_batches_at(int64_t step) const;
};

// Endless stream of optimizer steps over a dataset. All ranks see the same global order, and
// nothing depends on time.
//
// Packs: without packing every sample is a pack of its own; of a dataset that wraps, the rows of a
//   window are laid end to end and cut every max_length tokens. Pack i of a global batch goes to dp
//   rank i mod dp_size; a rank's packs fill its micro-batches in order. With tokens_per_micro_batch
//   pack i goes to slot i mod (micro_batches * dp_size) instead, slot s being micro-batch s /
//   dp_size of rank s mod dp_size, and the batch ends before the first pack that its slot has no
//   room for.
// Epochs: one sees every row of a source weight / (smallest weight) times, of which the fractional
//   part is decided for each row by a draw from (seed, epoch, row); with equal weights exactly
//   once. The last, short global batch of an epoch is used as it is, so some ranks may get empty
//   micro-batches.
// Use: next() has no effect but the position of the stream, so it may run ahead freely (prefetch);
//   only the cursor that came with a consumed step is saved.
// Threads: one calls. While it uses a step, the rows of the next one are read and tokenised on a
//   thread of the stream's own.
// Memory: lengths of the rows (4 bytes each) and a bounded cache of samples.
// Errors of next(): kInvalidArgument for a bad sample, a sample longer than max_length, or an epoch
//   without a usable sample. All ranks throw alike, except that a sample whose length is known
//   already is read by its own rank only.
// steps_per_epoch() is used for num_train_epochs. Later epochs may differ by the packs that their
//   windows happen to form, so a loop over epochs stops by Step::after.epoch.
class BatchStream : public StepStream<MicroBatch> {
 public:
  BatchStream(std::shared_ptr<const Dataset> dataset, BatchOptions options, Cursor start = {});
};

// Evaluation: every usable sample of the set exactly once over all ranks (sample i on rank i mod
// dp_size), in file order. A micro-batch has rows_per_micro_batch samples, or as many as fit into
// tokens_per_micro_batch (with packing: rows_per_micro_batch * max_length) tokens; of a dataset
// that wraps each part of max_length tokens is a sample. Every rank returns the same number of
// micro-batches, of which the last ones may be empty.
std::vector<MicroBatch> eval_batches(const Dataset& dataset, const BatchOptions& options);

}  // namespace retort::data
