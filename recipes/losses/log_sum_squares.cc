#include "recipes/losses/log_sum_squares.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "recipes/losses/detail/aten_softmax.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses {
namespace {

class SquaredChunks : public detail::ChunkLoss {
 public:
  SquaredChunks(const detail::VocabGroup& vocab, at::Tensor result)
      : vocab_(vocab), result_(std::move(result)) {}

  // log sum p^2 = log sum e^2x - 2 log sum e^x. The row's maximum is taken off first: it cancels,
  // and neither power can overflow then.
  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool) override {
    at::Tensor max = detail::row_max(logits);
    vocab_.max({&max});
    logits.sub_(max.unsqueeze(1)).exp_();
    at::Tensor sum = logits.sum(1, /*keepdim=*/false, at::kDouble);
    at::Tensor squares = logits.mul_(logits).sum(1, /*keepdim=*/false, at::kDouble);
    vocab_.sum({&sum, &squares});
    result_.narrow(0, begin, count).copy_(squares.log() - sum.log() * 2);
  }
  at::Tensor loss_sum() const override { return {}; }  // there is no scalar

 private:
  const detail::VocabGroup& vocab_;
  at::Tensor result_;
};

}  // namespace

at::Tensor linear_log_sum_squares(const at::Tensor& hidden, const at::Tensor& weight,
                                  const parallel::VocabShard& shard, double softcap,
                                  int64_t chunk_tokens) {
  const detail::LinearHead head{hidden.detach(), weight.detach(), {}, softcap};
  std::optional<detail::VocabGroup> vocab;
  // All ranks of a split vocabulary check together, so that none waits in a reduction for one that
  // has thrown.
  detail::check_together(shard, [&] {
    const at::Tensor no_targets = at::zeros({hidden.size(0)}, at::kLong);
    detail::check_head(head, no_targets, detail::vocab_total(shard, weight));
    detail::check_chunk_tokens(chunk_tokens);
    vocab.emplace(shard, head.vocab());
  });

  const at::Tensor result = at::empty({head.rows()}, hidden.options().dtype(at::kFloat));
  SquaredChunks chunks(*vocab, result);
  const int64_t rows_at_once =
      detail::aten_chunk_rows(chunk_tokens, vocab->rows_per_rank(), hidden.device());
  detail::run_linear_head_forward(head, rows_at_once, chunks);
  return result;
}

}  // namespace retort::losses
