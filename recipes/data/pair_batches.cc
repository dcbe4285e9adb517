#include "recipes/data/pair_batches.h"

#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/completion_batch.h"
#include "recipes/data/detail/step_rows.h"
#include "recipes/data/detail/tensors.h"

namespace retort::data {
namespace {

// Returns the options that StepRows is given for pairs, each of which is a row of two sequences.
BatchOptions options_of_pairs(const BatchOptions& options, int64_t max_length) {
  if (options.tokens_per_micro_batch != 0 && options.tokens_per_micro_batch < 2 * max_length)
    throw Error(ErrorCode::kInvalidArgument,
                "tokens_per_batch is " + std::to_string(options.tokens_per_micro_batch) +
                    "; expected at least twice data.max_length (2 * " + std::to_string(max_length) +
                    "), or a long pair would not fit");
  return detail::end_to_end(options, max_length, "pairs", 2);
}

std::unique_ptr<PairBatchStream::Source> steps_of_pairs(
    std::shared_ptr<const PreferenceDataset> dataset, const BatchOptions& options,
    const Cursor& start) {
  const BatchOptions of_rows = options_of_pairs(options, dataset->max_length());
  const detail::Layout layout =
      of_rows.tokens_per_micro_batch > 0 ? detail::Layout::kBuckets : detail::Layout::kSingle;
  auto pairs = std::make_shared<detail::PairCache>(std::move(dataset), detail::kItemCacheBytes);
  return detail::steps_of_rows<PairMicroBatch>(detail::StepRows(pairs, of_rows, layout, start),
                                               pairs, make_pair_micro_batch);
}

// The flat arrays of pairs that are one sequence each: the second completion begins again after the
// prompt, which is computed once for both.
struct Forked {
  std::vector<int64_t> ids, positions, predict;

  void add(const PreferenceSample& pair) {
    const auto begin = static_cast<int64_t>(ids.size());
    const auto prompt = static_cast<int64_t>(pair.prompt_ids.size());
    add_prompt(pair.prompt_ids);
    for (const auto* completion : {&pair.chosen_ids, &pair.rejected_ids})
      add_completion(*completion, prompt, begin + prompt - 1);
  }

  // Adds a completion that shares its prompt with no other.
  void add_alone(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion) {
    add_prompt(prompt);
    const auto end = static_cast<int64_t>(ids.size());
    add_completion(completion, static_cast<int64_t>(prompt.size()), end - 1);
  }

  void add_prompt(const std::vector<int32_t>& prompt) {
    for (int64_t i = 0; i < static_cast<int64_t>(prompt.size()); ++i) {
      ids.push_back(prompt[static_cast<size_t>(i)]);
      positions.push_back(i);
    }
  }

  // The completion's first token is predicted from the prompt's last one, the others from the one
  // before. Its positions go on from the prompt, not from what stands before it.
  void add_completion(const std::vector<int32_t>& completion, int64_t prompt, int64_t prompt_end) {
    const auto first = static_cast<int64_t>(ids.size());
    for (int64_t i = 0; i < static_cast<int64_t>(completion.size()); ++i) {
      predict.push_back(i == 0 ? prompt_end : first + i - 1);
      ids.push_back(completion[static_cast<size_t>(i)]);
      positions.push_back(prompt + i);
    }
  }
};

}  // namespace

PairMicroBatch make_pair_micro_batch(std::vector<PreferenceSample> pairs) {
  PairMicroBatch batch;
  std::vector<PromptedCompletion> completions;
  for (const PreferenceSample& pair : pairs) {
    RETORT_CHECK(!pair.prompt_ids.empty() && !pair.chosen_ids.empty() && !pair.rejected_ids.empty())
        << pair.origin;
    completions.push_back({pair.prompt_ids, pair.chosen_ids});
    completions.push_back({pair.rejected_prompt_ids(), pair.rejected_ids});
    batch.shapes.push_back({static_cast<int64_t>(pair.prompt_ids.size()),
                            static_cast<int64_t>(pair.chosen_ids.size()),
                            static_cast<int64_t>(pair.rejected_ids.size())});
  }

  CompletionBatch laid_out = make_completion_batch(std::move(completions));
  batch.tokens = std::move(laid_out.tokens);
  batch.predict_positions = std::move(laid_out.predict_positions);
  batch.targets = std::move(laid_out.targets);
  batch.sequence_of_row = std::move(laid_out.sequence_of_row);
  batch.pairs = std::move(pairs);
  return batch;
}

SharedPrompts share_prompts(const PairMicroBatch& batch) {
  Forked forked;
  SharedPrompts shared;
  shared.tokens.cu_seqlens = {0};
  for (const PreferenceSample& pair : batch.pairs) {
    // Cutting the beginning may leave the two completions with different prompts; then the pair is
    // two sequences without a fork.
    if (!pair.shares_prompt()) {
      forked.add_alone(pair.prompt_ids, pair.chosen_ids);
      shared.tokens.cu_seqlens.push_back(static_cast<int64_t>(forked.ids.size()));
      forked.add_alone(pair.rejected_prompt_ids(), pair.rejected_ids);
      shared.tokens.cu_seqlens.push_back(static_cast<int64_t>(forked.ids.size()));
      shared.tokens.forks.resize(shared.tokens.forks.size() + 2);
      continue;
    }
    forked.add(pair);
    const auto prompt = static_cast<int64_t>(pair.prompt_ids.size());
    const auto chosen = static_cast<int64_t>(pair.chosen_ids.size());
    shared.tokens.cu_seqlens.push_back(static_cast<int64_t>(forked.ids.size()));
    shared.tokens.forks.push_back({.prefix = prompt, .begins = {prompt + chosen}});
  }
  shared.tokens.input_ids = detail::to_tensor(forked.ids);
  shared.tokens.positions = detail::to_tensor(forked.positions);
  shared.predict_positions = detail::to_tensor(forked.predict);
  return shared;
}

SharedPrompts student_sequences(const PairMicroBatch& batch, bool share) {
  if (share) return share_prompts(batch);
  return {.tokens = batch.tokens, .predict_positions = batch.predict_positions};
}

PairBatchStream::PairBatchStream(std::shared_ptr<const PreferenceDataset> dataset,
                                 const BatchOptions& options, Cursor start)
    : StepStream(steps_of_pairs(std::move(dataset), options, start)) {}

std::vector<PairMicroBatch> eval_pair_batches(const PreferenceDataset& dataset,
                                              const BatchOptions& options) {
  const BatchOptions of_rows = options_of_pairs(options, dataset.max_length());
  std::vector<PairMicroBatch> result;
  for (auto& pairs :
       detail::eval_items<PreferenceSample>(dataset, of_rows, of_rows.tokens_per_micro_batch))
    result.push_back(make_pair_micro_batch(std::move(pairs)));
  return result;
}

}  // namespace retort::data
