#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/aten_softmax.h"
#include "recipes/losses/detail/device_rows.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

class CrossEntropyChunks : public ChunkLoss {
 public:
  CrossEntropyChunks(const VocabGroup& vocab, const at::Tensor& targets, CrossEntropyType type)
      : vocab_(vocab),
        targets_(targets),
        dft_(type == CrossEntropyType::kDft),
        sums_(at::zeros({3}, targets.options().dtype(at::kDouble))) {}

  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool gradient) override {
    if (has_kernels(logits)) return run_kernels(begin, count, logits, GradientDtype::kFloat32);
    TargetSoftmax softmax(vocab_, targets_.narrow(0, begin, count), logits);
    vocab_.max({&softmax.max});
    softmax.exponentials(logits);
    vocab_.sum(softmax.sums());
    const at::Tensor log_prob = softmax.log_prob();
    const at::Tensor p = dft_ ? log_prob.exp() : at::Tensor();
    const at::Tensor value = dft_ ? p * log_prob : log_prob;
    sums_.add_(at::stack({value, softmax.entropy(), softmax.correct()}).sum(1));
    if (!gradient) return;

    // d CE / d logits = softmax - 1[target], with dft times p.
    softmax.write_softmax(logits, dft_ ? p : at::full({}, 1, sums_.options()));
    softmax.add_at_target(
        logits, dft_ ? p.neg().to(logits.scalar_type()) : at::full({count}, -1, logits.options()));
  }
  at::Tensor rounded_chunk(int64_t begin, int64_t count, at::Tensor logits) override {
    if (!has_kernels(logits)) return ChunkLoss::rounded_chunk(begin, count, logits);
    run_kernels(begin, count, logits, GradientDtype::kBfloat16);
    return over_front(logits);
  }
  at::Tensor loss_sum() const override { return sums_.select(0, 0).neg(); }
  at::Tensor numbers() const { return sums_.narrow(0, 1, 2); }

 private:
  bool has_kernels(const at::Tensor& logits) const {
    return !vocab_.split() && has_row_kernels(logits);
  }
  void run_kernels(int64_t begin, int64_t count, const at::Tensor& logits, GradientDtype dtype) {
    const at::Tensor targets = targets_.narrow(0, begin, count);
    sums_.add_(
        (dft_ ? dft_rows(logits, targets, dtype) : cross_entropy_rows(logits, targets, dtype))
            .sum(1));
  }

  const VocabGroup& vocab_;
  at::Tensor targets_;
  const bool dft_;
  at::Tensor sums_;  // [3] log-probability (dft: p times it), entropy, correct
};

}  // namespace

UnreadCrossEntropy aten_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                      const at::Tensor& bias, const at::Tensor& targets,
                                      int64_t chunk_tokens, const parallel::VocabShard& shard,
                                      double softcap, CrossEntropyType type) {
  const LinearHead head{hidden, weight, bias, softcap};
  std::optional<VocabGroup> vocab;
  check_together(shard, [&] {
    check_head(head, targets, vocab_total(shard, weight));
    check_chunk_tokens(chunk_tokens);
    vocab.emplace(shard, head.vocab());
  });

  CrossEntropyChunks chunks(*vocab, moved_to(hidden.device(), targets).contiguous(), type);
  const int64_t rows_at_once = logit_chunk_rows(chunk_tokens, *vocab, hidden.device());
  UnreadCrossEntropy result;
  result.loss_sum = run_linear_head(head, rows_at_once, chunks);
  result.count = head.rows();
  result.numbers = chunks.numbers();
  return result;
}

CrossEntropyResult read(UnreadCrossEntropy loss) {
  const at::Tensor numbers = loss.numbers.cpu();
  return {CrossEntropySums::of(numbers.const_data_ptr<double>()), std::move(loss.loss_sum),
          loss.count};
}

}  // namespace retort::losses::detail
