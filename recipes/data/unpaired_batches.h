// Micro-batches of judged completions for one data-parallel rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/completion_batch.h"
#include "recipes/data/cursor.h"
#include "recipes/data/step_stream.h"
#include "recipes/data/unpaired_dataset.h"

namespace retort::data {

// A row of a global batch, and the completion of the row before it there (before the first row
// stands the last): what the row's prompt did not lead to. In a batch of one row it is the row's
// own.
struct UnpairedRow {
  UnpairedSample sample;
  std::vector<int32_t> other_completion_ids;
};

// B rows of one rank, in the order of both batches.
struct UnpairedMicroBatch {
  CompletionBatch own;         // each prompt with its own completion
  CompletionBatch mismatched;  // each prompt with the other one
  std::vector<UnpairedSample> samples;
  int64_t num_rows() const { return static_cast<int64_t>(samples.size()); }
};

UnpairedMicroBatch make_unpaired_micro_batch(std::vector<UnpairedRow> rows, int64_t max_length);

// Endless stream of optimizer steps over judged completions; rows, order, ranks, cursor and errors
// as BatchStream without packing; the cursor counts rows.
//
// Mismatches: formed in the global batch, before it is dealt to ranks and micro-batches, so that
//   they do not depend on the layout. (TRL forms them in each micro-batch.)
// Options: max_length and packing are not for these rows: a sequence has at most the dataset's
//   max_length tokens, and rows are never packed. kInvalidArgument for packing = false, and for a
//   max_length that is neither the default nor the dataset's. tokens_per_micro_batch counts the
//   rows' own completions, and is used with buckets of like lengths as by PairBatchStream, with
//   what that says of rampup_steps and of cursors.
class UnpairedBatchStream : public StepStream<UnpairedMicroBatch> {
 public:
  UnpairedBatchStream(std::shared_ptr<const UnpairedDataset> dataset, const BatchOptions& options,
                      Cursor start = {});
};

// Evaluation: every usable row exactly once over all ranks (row i on rank i mod dp_size), in file
// order; mismatches are formed in the whole set. All ranks return the same number of micro-batches,
// of which the last ones may be empty. Options as UnpairedBatchStream. Memory: every rank reads all
// rows and keeps its own.
std::vector<UnpairedMicroBatch> eval_unpaired_batches(const UnpairedDataset& dataset,
                                                      const BatchOptions& options);

}  // namespace retort::data
