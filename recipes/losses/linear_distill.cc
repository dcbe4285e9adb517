#include "recipes/losses/linear_distill.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_loss.h"
#include "recipes/losses/detail/teacher_rows.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses {
namespace {

class DistillChunks : public detail::ChunkLoss {
 public:
  DistillChunks(const at::Tensor& targets, int64_t vocab, detail::TeacherRows& teacher,
                const DivergenceOptions& options)
      : targets_(targets.contiguous()),
        vocab_(vocab),
        common_(options.common_vocab > 0 ? options.common_vocab : vocab),
        teacher_(teacher),
        kd_ratio_(options.kd_ratio),
        kd_factor_(detail::kd_factor(options)),
        loss_(detail::row_loss(options)) {}

  void chunk(int64_t begin, int64_t count, at::Tensor chunk, bool gradient) override {
    float* logits = chunk.data_ptr<float>();
    const int64_t* targets = targets_.data_ptr<int64_t>() + begin;
    loss_.gradient = gradient;
    teacher_.load(begin, count);
    rows_.resize(count);
    detail::for_rows(count, [&](int64_t first, int64_t last, int thread) {
      for (int64_t r = first; r < last; ++r)
        rows_[r] =
            teacher_.row(r, {logits + r * vocab_, vocab_, common_, targets[r]}, loss_, thread);
    });

    // In the order of the rows, whichever thread had them.
    for (int64_t r = 0; r < count; ++r) {
      if (rows_[r].status != detail::RowStatus::kOk) detail::refuse_row(rows_[r].status, begin + r);
      add(rows_[r]);
    }
  }

  at::Tensor loss_sum() const override {
    return at::scalar_tensor(detail::mixed_loss(kd_ratio_, sums_.kd_sum, sums_.ce_sum),
                             at::kDouble);
  }
  at::Tensor numbers() const {
    return at::tensor({sums_.kd_sum, sums_.ce_sum, sums_.teacher_mass_sum, sums_.student_mass_sum,
                       sums_.masked_mass_sum, sums_.entropy_sum,
                       static_cast<double>(sums_.num_correct), detail::kNoRowRefused},
                      at::kDouble);
  }

 private:
  void add(const detail::RowResult& row) {
    sums_.kd_sum += kd_factor_ * row.kd;
    sums_.ce_sum -= row.log_prob;
    sums_.teacher_mass_sum += row.teacher_mass;
    sums_.student_mass_sum += row.student_mass;
    sums_.masked_mass_sum += row.masked_mass;
    sums_.entropy_sum += row.entropy;
    sums_.num_correct += row.correct;
  }

  at::Tensor targets_;
  int64_t vocab_;
  int64_t common_;
  detail::TeacherRows& teacher_;
  double kd_ratio_;
  double kd_factor_;
  detail::RowLoss loss_;
  std::vector<detail::RowResult> rows_;
  DistillSums sums_;
};

}  // namespace

DistillSums DistillSums::of(const double* numbers) {
  detail::refuse_coded(numbers[7]);
  return {.kd_sum = numbers[0],
          .ce_sum = numbers[1],
          .teacher_mass_sum = numbers[2],
          .student_mass_sum = numbers[3],
          .masked_mass_sum = numbers[4],
          .entropy_sum = numbers[5],
          .num_correct = static_cast<int64_t>(numbers[6])};
}

DistillResult linear_distill(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& targets,
                             const TeacherSignal& signal, const DivergenceOptions& options,
                             const parallel::VocabShard& vocab) {
  return detail::read(unread_distill(hidden, weight, bias, targets, signal, options, vocab));
}

UnreadDistill unread_distill(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& targets,
                             const TeacherSignal& signal, const DivergenceOptions& options,
                             const parallel::VocabShard& vocab) {
  if (!vocab.whole() || !detail::on_cpu(hidden))
    return detail::aten_distill(hidden, weight, bias, targets, signal, options, vocab);
  const detail::LinearHead head{hidden, weight, bias};
  options.validate();
  detail::check_head(head, targets, detail::vocab_total(vocab, weight));
  const detail::VocabGroup whole(vocab, head.vocab());

  const auto teacher = detail::make_teacher_rows(signal, head.rows(), whole.total(), options);
  DistillChunks chunks(targets, whole.total(), *teacher, options);
  const int64_t rows_at_once =
      detail::chunk_rows(options.chunk_tokens, head.vocab() + teacher->floats_per_row());
  const at::Tensor loss_sum = detail::run_linear_head(head, rows_at_once, chunks);
  return {.loss_sum = loss_sum, .count = head.rows(), .numbers = chunks.numbers()};
}

}  // namespace retort::losses
