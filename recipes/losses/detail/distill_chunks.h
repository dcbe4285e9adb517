// Turns a chunk of logits into its loss against one teacher, by row kernels: whole vocabularies on
// the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/detail/teacher_rows.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses::detail {

class DistillChunks : public ChunkLoss {
 public:
  // targets [R] int64 of the signal's R rows; `vocab` ids of the student. The signal must outlive
  // this. Errors: those of make_teacher_rows().
  DistillChunks(const at::Tensor& targets, int64_t vocab, const TeacherSignal& signal,
                const DivergenceOptions& options);

  // kCorrupt, kMismatch with the row: that of the teacher was no distribution.
  void chunk(int64_t begin, int64_t count, at::Tensor chunk, bool gradient) override;
  at::Tensor loss_sum() const override;
  // [8] float64 on the host: UnreadDistill::numbers.
  at::Tensor numbers() const;
  // The floats that a row needs beside the student's logits.
  int64_t floats_per_row() const { return teacher_->floats_per_row(); }

 private:
  void add(const RowResult& row);

  at::Tensor targets_;
  int64_t vocab_;
  int64_t common_;
  std::unique_ptr<TeacherRows> teacher_;
  double kd_ratio_;
  double kd_factor_;
  RowLoss loss_;
  std::vector<RowResult> rows_;
  DistillSums sums_;
};

}  // namespace retort::losses::detail
