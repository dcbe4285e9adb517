// A frozen reference: what it gave to tokens or whole completions, asked for by one rank and known
// to all that form the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/ops/packed.h"
#include "parallel/group.h"
#include "recipes/run/reference/reference_cache.h"
#include "roles/teacher/frozen_answers.h"

namespace retort::recipes {

// A prompt and what was said after it, by which the sum of the completion is kept; both outlive the
// call that gets them. Where the sum is weighted `completion` says how, by ids that are none.
struct CompletionIds {
  std::reference_wrapper<const std::vector<int32_t>> prompt, completion;
};

// Threads: compute. Collectives: as stated, on the tensor-parallel group where the pipeline ends.
class Reference {
 public:
  // An answer on its way; nullopt on a rank that did not ask, or when nothing had to be asked.
  using Pending = std::optional<roles::PendingPayload>;

  // `client` (payload: target_logps): null on a rank that does not ask. `tp`: the ranks that form
  // the loss, of which the first asks; null: this rank is none of them. `cache`: where the sums of
  // completions are kept, on the rank that asks; null: they are not asked for.
  Reference(std::unique_ptr<roles::FrozenAnswers> client, parallel::Group* tp,
            std::unique_ptr<ReferenceCache> cache = nullptr);
  // Answers that every rank of the student computes together and has: each calls ask() and
  // ask_unknown() with the same tokens, which hold the collectives of `answers`; nothing else does,
  // and nothing is kept.
  explicit Reference(std::unique_ptr<roles::FrozenAnswers> answers);
  ~Reference();
  // Whether every rank asks, so that no rank may ask what the others do not.
  bool on_all_ranks() const { return on_all_ranks_; }

  // Sends the tokens if this rank asks; returns at once.
  Pending ask(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
              const at::Tensor& positions);
  // The log-probability of each of the `num_rows` targets asked for: [num_rows] float32 on every
  // rank of tp. A vote and a broadcast on tp; none if there are no rows.
  at::Tensor token_log_probs(Pending& pending, int64_t num_rows, double* waited = nullptr);

  // Asks as ask() does, unless the cache knows every one of the completions.
  Pending ask_unknown(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                      const at::Tensor& positions, const std::vector<CompletionIds>& completions);
  // The log-probability of each completion, which is the sum of its rows, each times its
  // `row_weights` [rows] float32 where they are given: [completions] float32 on every rank of tp. A
  // vote and a broadcast on tp.
  at::Tensor completion_log_probs(Pending& pending, const std::vector<CompletionIds>& completions,
                                  const at::Tensor& sequence_of_row, double* waited = nullptr,
                                  const at::Tensor& row_weights = {});

 private:
  bool asks() const { return client_ != nullptr; }
  void read_completions(Pending& pending, const std::vector<CompletionIds>& completions,
                        const at::Tensor& sequence_of_row, const at::Tensor& row_weights,
                        float* values, double* waited);

  std::unique_ptr<roles::FrozenAnswers> client_;
  parallel::Group* tp_;
  std::unique_ptr<ReferenceCache> cache_;
  bool on_all_ranks_ = false;
};

}  // namespace retort::recipes
