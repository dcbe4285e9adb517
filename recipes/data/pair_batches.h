// Micro-batches of preference pairs for one data-parallel rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/ops/packed.h"
#include "recipes/data/batches.h"
#include "recipes/data/cursor.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/data/step_stream.h"

namespace retort::data {

struct PairShape {
  int64_t prompt_tokens;  // before the chosen completion
  int64_t chosen_tokens;
  int64_t rejected_tokens;
};

// P pairs of one rank, laid out as 2 P sequences: pair p is sequence 2 p (prompt + chosen) and 2 p
// + 1 (prompt + rejected). A reader of sequence_of_row does not depend on that layout: the numbers
// stay right when a pair's prompt is computed once. R = tokens of all completions, all of which are
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

// The same pairs with each prompt computed once: a pair is one sequence (prompt, chosen, rejected)
// that forks after the prompt, or two where truncation has left it two prompts. targets and
// sequence_of_row of the batch stay as they are; saves the tokens of the prompts that are shared.
struct SharedPrompts {
  models::PackedTokens tokens;
  // [R] int64; both completions' first tokens are predicted from the prompt's last position
  at::Tensor predict_positions;
};
SharedPrompts share_prompts(const PairMicroBatch& batch);
// The pairs as a student computes them: `share` on the CPU, else as they lie in the batch. A
// device's attention kernels know no forks, and what goes around them takes longer than the prompts
// do.
SharedPrompts student_sequences(const PairMicroBatch& batch, bool share);

// Endless stream of optimizer steps over pairs; rows, order, ranks, cursor and errors as
// BatchStream without packing; the cursor counts pairs.
//
// Options: max_length and packing are not for pairs: a sequence has at most the dataset's
//   max_length tokens, and pairs are never packed. kInvalidArgument for packing = false, and for a
//   max_length that is neither the default nor the dataset's. rows_per_micro_batch counts pairs.
// Buckets: with tokens_per_micro_batch, which must be at least twice the dataset's max_length since
//   both sequences of a pair count, each window of kWindowSamples pairs is sorted by tokens and cut
//   into global batches of like lengths, so that the micro-batches of a step cost about the same on
//   all ranks. The order of these batches is then shuffled by (seed, epoch, window), and the last
//   batch of a window may be short. rampup_steps does not go with it: the batches are formed
//   beforehand.
// Use: with a budget of tokens a cursor continues exactly only under the same budget and the same
//   micro_batches * dp_size.
class PairBatchStream : public StepStream<PairMicroBatch> {
 public:
  PairBatchStream(std::shared_ptr<const PreferenceDataset> dataset, const BatchOptions& options,
                  Cursor start = {});
};

// Evaluation: every usable pair exactly once over all ranks (pair i on rank i mod dp_size), in file
// order. All ranks return the same number of micro-batches, of which the last ones may be empty.
// Options as PairBatchStream.
std::vector<PairMicroBatch> eval_pair_batches(const PreferenceDataset& dataset,
                                              const BatchOptions& options);

}  // namespace retort::data
