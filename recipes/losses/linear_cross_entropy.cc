#include "recipes/losses/linear_cross_entropy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <vector>

#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses {
namespace {

class CrossEntropyChunks : public detail::ChunkLoss {
 public:
  CrossEntropyChunks(const at::Tensor& targets, int64_t vocab, CrossEntropyType type)
      : targets_(targets.contiguous()), vocab_(vocab), type_(type) {}

  void chunk(int64_t begin, int64_t count, at::Tensor chunk, bool gradient) override {
    float* logits = chunk.data_ptr<float>();
    const int64_t* targets = targets_.data_ptr<int64_t>() + begin;
    const bool dft = type_ == CrossEntropyType::kDft;
    const detail::RowLoss loss{.ce_weight = 1, .times_probability = dft, .gradient = gradient};
    rows_.resize(count);
    detail::for_rows(count, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r)
        rows_[r] = kernels_.cross_entropy({logits + r * vocab_, vocab_, vocab_, targets[r]}, loss);
    });

    // The sums run in the order of the rows, whichever thread had them, so that their bits do not
    // depend on the number of threads.
    for (int64_t r = 0; r < count; ++r) {
      const double log_prob = rows_[r].log_prob;
      loss_ -= dft ? std::exp(log_prob) * log_prob : log_prob;
      entropy_ += rows_[r].entropy;
      num_correct_ += rows_[r].correct;
    }
  }
  at::Tensor loss_sum() const override { return at::scalar_tensor(loss_, at::kDouble); }
  at::Tensor numbers() const {
    return at::tensor({entropy_, static_cast<double>(num_correct_)}, at::kDouble);
  }

 private:
  const detail::RowKernels& kernels_ = detail::row_kernels();
  at::Tensor targets_;
  int64_t vocab_;
  CrossEntropyType type_;
  std::vector<detail::RowResult> rows_;
  double loss_ = 0;
  double entropy_ = 0;
  int64_t num_correct_ = 0;
};

}  // namespace

CrossEntropySums CrossEntropySums::of(const double* numbers) {
  return {.entropy_sum = numbers[0], .num_correct = static_cast<int64_t>(numbers[1])};
}

CrossEntropyResult linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& targets,
                                        int64_t chunk_tokens, const parallel::VocabShard& vocab,
                                        double softcap, CrossEntropyType type) {
  return detail::read(
      unread_cross_entropy(hidden, weight, bias, targets, chunk_tokens, vocab, softcap, type));
}

UnreadCrossEntropy unread_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& targets,
                                        int64_t chunk_tokens, const parallel::VocabShard& vocab,
                                        double softcap, CrossEntropyType type) {
  if (!vocab.whole() || !detail::on_cpu(hidden))
    return detail::aten_cross_entropy(hidden, weight, bias, targets, chunk_tokens, vocab, softcap,
                                      type);
  const detail::LinearHead head{hidden, weight, bias, softcap};
  detail::check_head(head, targets, detail::vocab_total(vocab, weight));
  const detail::VocabGroup whole(vocab, head.vocab());
  detail::check_chunk_tokens(chunk_tokens);

  CrossEntropyChunks chunks(targets, whole.total(), type);
  UnreadCrossEntropy result;
  result.loss_sum =
      detail::run_linear_head(head, detail::chunk_rows(chunk_tokens, head.vocab()), chunks);
  result.count = head.rows();
  result.numbers = chunks.numbers();
  return result;
}

}  // namespace retort::losses
