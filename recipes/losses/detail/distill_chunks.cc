#include "recipes/losses/detail/distill_chunks.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include "recipes/losses/detail/row_loss.h"

namespace retort::losses::detail {

DistillChunks::DistillChunks(const at::Tensor& targets, int64_t vocab, const TeacherSignal& signal,
                             const DivergenceOptions& options)
    : targets_(targets.contiguous()),
      vocab_(vocab),
      common_(options.common_vocab > 0 ? options.common_vocab : vocab),
      teacher_(make_teacher_rows(signal, targets.size(0), vocab, options)),
      kd_ratio_(options.kd_ratio),
      kd_factor_(kd_factor(options)),
      loss_(row_loss(options)) {}

void DistillChunks::chunk(int64_t begin, int64_t count, at::Tensor chunk, bool gradient) {
  float* logits = chunk.data_ptr<float>();
  const int64_t* targets = targets_.data_ptr<int64_t>() + begin;
  loss_.gradient = gradient;
  teacher_->load(begin, count);
  rows_.resize(count);
  for_rows(count, [&](int64_t first, int64_t last, int thread) {
    for (int64_t r = first; r < last; ++r)
      rows_[r] =
          teacher_->row(r, {logits + r * vocab_, vocab_, common_, targets[r]}, loss_, thread);
  });

  // The sums run in the order of the rows, whichever thread had them, so that their bits do not
  // depend on the number of threads. The first bad row is the one that is named.
  for (int64_t r = 0; r < count; ++r) {
    if (rows_[r].status != RowStatus::kOk) refuse_row(rows_[r].status, begin + r);
    add(rows_[r]);
  }
}

at::Tensor DistillChunks::loss_sum() const {
  return at::scalar_tensor(mixed_loss(kd_ratio_, sums_.kd_sum, sums_.ce_sum), at::kDouble);
}

at::Tensor DistillChunks::numbers() const {
  return at::tensor({sums_.kd_sum, sums_.ce_sum, sums_.teacher_mass_sum, sums_.student_mass_sum,
                     sums_.masked_mass_sum, sums_.entropy_sum,
                     static_cast<double>(sums_.num_correct), kNoRowRefused},
                    at::kDouble);
}

void DistillChunks::add(const RowResult& row) {
  sums_.kd_sum += kd_factor_ * row.kd;
  sums_.ce_sum -= row.log_prob;
  sums_.teacher_mass_sum += row.teacher_mass;
  sums_.student_mass_sum += row.student_mass;
  sums_.masked_mass_sum += row.masked_mass;
  sums_.entropy_sum += row.entropy;
  sums_.num_correct += row.correct;
}

}  // namespace retort::losses::detail
