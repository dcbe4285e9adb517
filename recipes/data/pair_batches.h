// Micro-batches of preference pairs for one data-parallel rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/packed.h"
#include "recipes/data/batches.h"
#include "recipes/data/preference_dataset.h"

namespace retort::data {

struct PairShape {
  int64_t prompt_tokens, chosen_tokens, rejected_tokens;
};

// P pairs of one rank, laid out as 2 P sequences: pair p is sequence 2 p (prompt + chosen) and 2 p
// + 1 (prompt + rejected). Whoever reads sequence_of_row does not depend on that layout: it stays
// right when a pair's prompt is computed once. R = tokens of all completions, all of which are
// predicted. May be empty (P 0, R 0).
struct PairMicroBatch {
  models::PackedTokens tokens;
  // [R] int64, increasing: the position before each completion token
  at::Tensor predict_positions;
  at::Tensor targets;  // [R] int64
  // [R] int64, not decreasing: 2 p for the chosen completion of pair p, 2 p + 1 for the rejected
  at::Tensor sequence_of_row;
  std::vector<PairShape> shapes;        // [P]
  std::vector<PreferenceSample> pairs;  // [P]
  int64_t num_pairs() const { return static_cast<int64_t>(pairs.size()); }
  int64_t num_targets() const { return targets.defined() ? targets.numel() : 0; }
};

PairMicroBatch make_pair_micro_batch(std::vector<PreferenceSample> pairs);

// The same pairs with each prompt computed once: pair p is one sequence (prompt, chosen, rejected)
// that forks after the prompt. targets and sequence_of_row of the batch stay as they are; saves
// sum(prompt_tokens) of the tokens.
struct SharedPrompts {
  models::PackedTokens tokens;
  // [R] int64; both completions' first tokens are predicted from the prompt's last position
  at::Tensor predict_positions;
};
SharedPrompts share_prompts(const PairMicroBatch& batch);

struct PairBatchOptions {
  uint64_t seed = 42;
  int64_t rows_per_micro_batch = 8;  // per_device_train_batch_size: pairs in a micro-batch
  // tokens_per_batch: instead of rows, as many pairs as fit (both sequences count)
  int64_t tokens_per_micro_batch = 0;
  int64_t micro_batches = 1;  // gradient_accumulation_steps
  // as BatchOptions; not with tokens_per_micro_batch, whose batches are formed beforehand
  int64_t rampup_steps = 0;
  bool shuffle = true;
  int64_t dp_rank = 0, dp_size = 1;
  // of a sequence: the budget must hold a pair of two of them
  void validate(int64_t max_length) const;
};

// Endless stream of optimizer steps over pairs; rows, order, ranks, cursor and errors as
// BatchStream without packing. With tokens_per_micro_batch each window of kWindowSamples pairs is
// sorted by tokens and cut into global batches of like lengths (so that the micro-batches of a step
// cost about the same on all ranks), whose order is then shuffled by (seed, epoch, window); the
// last batch of a window may be short. With a budget a cursor continues exactly only under the same
// budget and the same micro_batches * dp_size.
class PairBatchStream {
 public:
  PairBatchStream(std::shared_ptr<const PreferenceDataset> dataset, PairBatchOptions options,
                  BatchCursor start = {});
  ~PairBatchStream();
  struct Step {
    std::vector<PairMicroBatch> micro_batches;  // exactly options.micro_batches
    // store this once the step has been consumed; packs_consumed counts pairs
    BatchCursor after;
    double epoch = 0;  // fractional, after this step
  };
  Step next();
  int64_t steps_per_epoch();  // of epoch 0; reads every pair once

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Evaluation: every usable pair exactly once over all ranks (pair i on rank i mod dp_size), in file
// order; all ranks return the same number of micro-batches, the last ones maybe empty.
std::vector<PairMicroBatch> eval_pair_batches(const PreferenceDataset& dataset,
                                              const PairBatchOptions& options);

}  // namespace retort::data
