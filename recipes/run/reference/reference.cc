#include "recipes/run/reference/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/vote.h"
#include "recipes/losses/sequence_sums.h"

namespace retort::recipes {
namespace {

at::Tensor weighted(const at::Tensor& logps, const at::Tensor& row_weights) {
  return row_weights.defined() ? logps * row_weights : logps;
}

}  // namespace

Reference::Reference(std::unique_ptr<roles::FrozenAnswers> client, parallel::Group* tp,
                     std::unique_ptr<ReferenceCache> cache)
    : client_(std::move(client)), tp_(tp), cache_(std::move(cache)) {
  RETORT_CHECK(asks() == (tp_ != nullptr && tp_->rank() == 0))
      << "the first rank that forms the loss asks, no other";
}

Reference::Reference(std::unique_ptr<roles::FrozenAnswers> answers)
    : client_(std::move(answers)), tp_(nullptr), on_all_ranks_(true) {}

Reference::~Reference() = default;

Reference::Pending Reference::ask(uint64_t request_id, int64_t step,
                                  const models::PackedTokens& tokens, const at::Tensor& positions) {
  if (!asks()) return std::nullopt;
  return client_->send(request_id, step, tokens, positions);
}

at::Tensor Reference::token_log_probs(Pending& pending, int64_t num_rows, double* waited) {
  at::Tensor log_probs = at::empty({num_rows}, at::kFloat);
  if (num_rows == 0) return log_probs;
  if (on_all_ranks_) {
    RETORT_CHECK(pending.has_value()) << "rows of which the reference was not asked";
    log_probs = client_->receive(std::move(*pending), waited).logps;
    pending.reset();
    return log_probs;
  }

  // One rank of the group asks. If its answer does not come, the vote says so to the others, which
  // would else wait in the broadcast.
  parallel::run_on_all(*tp_, [&] {
    RETORT_CHECK(pending || !asks()) << "rows of which the reference was not asked";
    if (!pending) return;
    log_probs = client_->receive(std::move(*pending), waited).logps.contiguous();
    pending.reset();
  });
  tp_->broadcast(log_probs, 0);
  return log_probs;
}

Reference::Pending Reference::ask_unknown(uint64_t request_id, int64_t step,
                                          const models::PackedTokens& tokens,
                                          const at::Tensor& positions,
                                          const std::vector<CompletionIds>& completions) {
  if (!asks()) return std::nullopt;
  const bool known =
      cache_ && std::all_of(completions.begin(), completions.end(), [&](const CompletionIds& ids) {
        return cache_->find(ids.prompt, ids.completion).has_value();
      });
  if (known) return std::nullopt;
  return client_->send(request_id, step, tokens, positions);
}

at::Tensor Reference::completion_log_probs(Pending& pending,
                                           const std::vector<CompletionIds>& completions,
                                           const at::Tensor& sequence_of_row, double* waited,
                                           const at::Tensor& row_weights) {
  const auto count = static_cast<int64_t>(completions.size());
  if (on_all_ranks_) {
    RETORT_CHECK(pending.has_value()) << "completions of which the reference was not asked";
    // The answer is put back, because it is read twice where the loss compares with counterparts.
    const roles::Payload payload = client_->receive(std::move(*pending), waited);
    pending = roles::answered(payload);
    return losses::sum_by_sequence(weighted(payload.logps, row_weights), sequence_of_row, count);
  }

  at::Tensor log_probs = at::empty({count}, at::kFloat);
  parallel::run_on_all(*tp_, [&] {
    if (!asks()) return;
    float* values = log_probs.mutable_data_ptr<float>();
    read_completions(pending, completions, sequence_of_row, row_weights, values, waited);
  });
  tp_->broadcast(log_probs, 0);
  return log_probs;
}

void Reference::read_completions(Pending& pending, const std::vector<CompletionIds>& completions,
                                 const at::Tensor& sequence_of_row, const at::Tensor& row_weights,
                                 float* values, double* waited) {
  if (pending) {
    const roles::Payload payload = client_->receive(std::move(*pending), waited);
    const auto count = static_cast<int64_t>(completions.size());
    const at::Tensor sums =
        losses::sum_by_sequence(weighted(payload.logps, row_weights), sequence_of_row, count)
            .contiguous();
    const float* sum = sums.const_data_ptr<float>();
    for (size_t i = 0; i < completions.size(); ++i)
      cache_->add(completions[i].prompt, completions[i].completion, sum[i]);
    pending.reset();
  }

  // The numbers come from the cache even if they were just answered: a completion counts with one
  // number, whichever batch it was asked in first.
  for (size_t i = 0; i < completions.size(); ++i) {
    const auto known = cache_->find(completions[i].prompt, completions[i].completion);
    RETORT_CHECK(known.has_value()) << "a completion without the reference's log-probability";
    values[i] = *known;
  }
}

}  // namespace retort::recipes
