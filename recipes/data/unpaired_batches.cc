#include "recipes/data/unpaired_batches.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/step_rows.h"

namespace retort::data {

// detail::ItemCache and detail::eval_items ask these of an item; they are found by its namespace.
inline int64_t tokens_of(const UnpairedSample& sample) { return sample.num_tokens; }
inline int64_t tokens_of(const UnpairedRow& row) { return row.sample.num_tokens; }
inline size_t bytes_of_ids(const UnpairedSample& sample) {
  return (sample.prompt_ids.size() + sample.completion_ids.size()) * sizeof(int32_t);
}

namespace {

using SampleCache = detail::ItemCache<UnpairedDataset, UnpairedSample>;

BatchOptions options_of_rows(const BatchOptions& options, int64_t max_length) {
  if (options.tokens_per_micro_batch > 0 && options.rampup_steps > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "batch_size_rampup_steps does not go with tokens_per_batch: batches by tokens are "
                "formed before their step is known");
  return detail::end_to_end(options, max_length, "completions", 1);
}

bool by_tokens(const BatchOptions& options) { return options.tokens_per_micro_batch > 0; }

// Returns options for a stream of one rank whose steps hold the whole global batches of `rows`,
// because a completion may be mismatched with that of another rank's row. By rows its micro-batch
// is that of all ranks; by tokens, where places are dealt out one by one, it has as many
// micro-batches as all ranks together.
BatchOptions global_options(const BatchOptions& rows) {
  BatchOptions global = rows;
  global.dp_rank = 0;
  global.dp_size = 1;
  if (by_tokens(rows))
    global.micro_batches *= rows.dp_size;
  else
    global.rows_per_micro_batch *= rows.dp_size;
  return global;
}

// Returns a global batch in its order: by tokens, row i of the batch was dealt to micro-batch i mod
// count; by rows, the micro-batches were filled one after the other.
std::vector<int64_t> in_global_order(const std::vector<std::vector<detail::RowPart>>& micro_batches,
                                     bool tokens) {
  std::vector<int64_t> rows;
  if (!tokens) {
    for (const auto& batch : micro_batches)
      for (const detail::RowPart& part : batch)
        rows.push_back(part.row);
    return rows;
  }
  for (size_t round = 0; round < micro_batches.front().size(); ++round)
    for (const auto& batch : micro_batches)
      if (round < batch.size()) rows.push_back(batch[round].row);
  return rows;
}

// Returns the row of a global batch of `size` with whose completion row `index` is mismatched: the
// one before it, in a circle.
size_t row_before(size_t index, size_t size) { return index == 0 ? size - 1 : index - 1; }

// All usable rows of a set as one batch. It stands for the set where detail::eval_items deals it
// out.
class LinkedRows {
 public:
  explicit LinkedRows(const UnpairedDataset& dataset) {
    for (int64_t row = 0; row < dataset.size(); ++row)
      if (std::optional<UnpairedSample> sample = dataset.get(row))
        samples_.push_back(std::move(*sample));
  }
  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  std::optional<UnpairedRow> get(int64_t row) const {
    const auto index = static_cast<size_t>(row);
    const UnpairedSample& before = samples_[row_before(index, samples_.size())];
    return UnpairedRow{samples_[index], before.completion_ids};
  }

 private:
  std::vector<UnpairedSample> samples_;
};

// Returns this rank's part of a global batch, as detail::Dealer deals it to `count` micro-batches.
std::vector<std::vector<UnpairedRow>> deal_rows(const std::vector<int64_t>& batch, int64_t count,
                                                const BatchOptions& options, SampleCache& samples) {
  std::vector<std::vector<UnpairedRow>> mine(static_cast<size_t>(count));
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    if (place % options.dp_size != options.dp_rank) continue;
    const int64_t of_rank = place / options.dp_size;
    const int64_t number =
        by_tokens(options) ? of_rank % count : of_rank / options.rows_per_micro_batch;
    const int64_t before = batch[row_before(i, batch.size())];
    mine[static_cast<size_t>(number)].push_back(
        {samples.item(batch[i]), samples.item(before).completion_ids});
  }
  return mine;
}

// Returns this rank's part of the next step, out of the rows of its global batch.
detail::StepItems<UnpairedRow> next_rows(detail::StepRows& rows, const BatchOptions& options,
                                         SampleCache& samples) {
  const detail::StepRows::Step next = rows.next();
  const bool tokens = by_tokens(options);
  const std::vector<int64_t> batch = in_global_order(next.micro_batches, tokens);
  const auto dealt = static_cast<int64_t>(next.micro_batches.size());
  const int64_t count = tokens ? dealt / options.dp_size : dealt;
  return {deal_rows(batch, count, options, samples), next.after, next.epoch};
}

std::unique_ptr<UnpairedBatchStream::Source> steps_of_completions(
    std::shared_ptr<const UnpairedDataset> dataset, const BatchOptions& options,
    const Cursor& start) {
  const int64_t max_length = dataset->max_length();
  const BatchOptions of_rows = options_of_rows(options, max_length);
  auto samples = std::make_shared<SampleCache>(std::move(dataset), detail::kItemCacheBytes);
  detail::StepRows rows(samples, global_options(of_rows),
                        by_tokens(of_rows) ? detail::Layout::kBuckets : detail::Layout::kSingle,
                        start);
  return std::make_unique<detail::StepsAhead<UnpairedMicroBatch, UnpairedRow>>(
      std::move(rows),
      [samples, of_rows](detail::StepRows& next) { return next_rows(next, of_rows, *samples); },
      [max_length](std::vector<UnpairedRow> mine) {
        return make_unpaired_micro_batch(std::move(mine), max_length);
      });
}

}  // namespace

UnpairedMicroBatch make_unpaired_micro_batch(std::vector<UnpairedRow> rows, int64_t max_length) {
  UnpairedMicroBatch batch;
  std::vector<PromptedCompletion> own;
  std::vector<PromptedCompletion> mismatched;
  for (UnpairedRow& row : rows) {
    const std::vector<int32_t>& prompt = row.sample.prompt_ids;
    RETORT_CHECK(!row.sample.completion_ids.empty() && !row.other_completion_ids.empty())
        << row.sample.origin;
    own.push_back({prompt, fit_completion(prompt, row.sample.completion_ids, max_length)});
    mismatched.push_back({prompt, fit_completion(prompt, row.other_completion_ids, max_length)});
    batch.samples.push_back(std::move(row.sample));
  }

  batch.own = make_completion_batch(std::move(own));
  batch.mismatched = make_completion_batch(std::move(mismatched));
  return batch;
}

UnpairedBatchStream::UnpairedBatchStream(std::shared_ptr<const UnpairedDataset> dataset,
                                         const BatchOptions& options, Cursor start)
    : StepStream(steps_of_completions(std::move(dataset), options, start)) {}

std::vector<UnpairedMicroBatch> eval_unpaired_batches(const UnpairedDataset& dataset,
                                                      const BatchOptions& options) {
  const BatchOptions of_rows = options_of_rows(options, dataset.max_length());
  const LinkedRows linked(dataset);
  std::vector<UnpairedMicroBatch> result;
  for (auto& rows :
       detail::eval_items<UnpairedRow>(linked, of_rows, of_rows.tokens_per_micro_batch))
    result.push_back(make_unpaired_micro_batch(std::move(rows), dataset.max_length()));
  return result;
}

}  // namespace retort::data
