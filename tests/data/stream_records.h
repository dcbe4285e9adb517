// What a BatchStream gave, in a form that tests compare.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "recipes/data/batches.h"
#include "tests/data/word_tokenizer.h"

namespace retort::test {

// Of a row of int64.
inline std::vector<int64_t> values(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kLong);
  EXPECT_EQ(tensor.dim(), 1);
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

// RowIds of the samples of one micro-batch, in order.
using RowIds = std::vector<int64_t>;
struct StepRecord {
  std::vector<RowIds> micro_batches;
  data::Cursor after;
  double epoch = 0;
};

inline RowIds ids_of(const data::MicroBatch& batch) {
  RowIds ids;
  for (const data::Sample& sample : batch.samples)
    ids.push_back(numbered_row_id(sample));
  return ids;
}
inline StepRecord record(const data::BatchStream::Step& step) {
  StepRecord result{{}, step.after, step.epoch};
  for (const data::MicroBatch& batch : step.micro_batches)
    result.micro_batches.push_back(ids_of(batch));
  return result;
}
// The steps of one rank until `epochs` epochs are consumed.
inline std::vector<StepRecord> run_epochs(const std::shared_ptr<const data::Dataset>& set,
                                          const data::BatchOptions& options, int64_t epochs) {
  data::BatchStream stream(set, options);
  std::vector<StepRecord> steps;
  do
    steps.push_back(record(stream.next()));
  while (steps.back().after.epoch < epochs);
  return steps;
}
// By rank.
inline std::vector<std::vector<StepRecord>> run_ranks(
    const std::shared_ptr<const data::Dataset>& set, data::BatchOptions options, int64_t dp_size,
    int64_t epochs) {
  std::vector<std::vector<StepRecord>> ranks;
  options.dp_size = dp_size;
  for (options.dp_rank = 0; options.dp_rank < dp_size; ++options.dp_rank)
    ranks.push_back(run_epochs(set, options, epochs));
  return ranks;
}
// All samples of step `s` over all ranks, sorted.
inline RowIds global_batch(const std::vector<std::vector<StepRecord>>& ranks, size_t s) {
  RowIds all;
  for (const auto& rank : ranks)
    for (const RowIds& ids : rank.at(s).micro_batches)
      all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  return all;
}
// Lengths that look like text: mostly short, some near `limit`.
inline std::vector<int64_t> some_lengths(int64_t count, int64_t limit, uint64_t seed = 1) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double u = random_uniform(seed, static_cast<uint64_t>(i));
    lengths.push_back(5 + static_cast<int64_t>(u * u * static_cast<double>(limit - 5)));
  }
  return lengths;
}

}  // namespace retort::test
