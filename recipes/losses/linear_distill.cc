#include "recipes/losses/linear_distill.h"

#include <ATen/core/Tensor.h>

#include "recipes/losses/detail/aten_losses.h"
#include "recipes/losses/detail/distill_chunks.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_loss.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses {
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
                             const parallel::VocabShard& vocab, double softcap) {
  return detail::read(
      unread_distill(hidden, weight, bias, targets, signal, options, vocab, softcap));
}

UnreadDistill unread_distill(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& targets,
                             const TeacherSignal& signal, const DivergenceOptions& options,
                             const parallel::VocabShard& vocab, double softcap) {
  if (!vocab.whole() || !detail::on_cpu(hidden))
    return detail::aten_distill(hidden, weight, bias, targets, signal, options, vocab, softcap);
  const detail::LinearHead head{hidden, weight, bias, softcap};
  options.validate();
  detail::check_head(head, targets, detail::vocab_total(vocab, weight));
  const detail::VocabGroup whole(vocab, head.vocab());

  detail::DistillChunks chunks(targets, whole.total(), signal, options);
  const int64_t rows_at_once =
      detail::chunk_rows(options.chunk_tokens, head.vocab() + chunks.floats_per_row());
  const at::Tensor loss_sum = detail::run_linear_head(head, rows_at_once, chunks);
  return {.loss_sum = loss_sum, .count = head.rows(), .numbers = chunks.numbers()};
}

}  // namespace retort::losses
