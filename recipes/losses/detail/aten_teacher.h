// The teacher's side of a chunk on the ATen path (aten_losses.h): one class per payload, each
// turning the student's logits into the divergence's rows and their gradient, over the columns that
// this rank holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "recipes/losses/detail/aten_softmax.h"
#include "recipes/losses/detail/device_rows.h"
#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/detail/sampled_weights.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses::detail {

// The numbers of a chunk's rows, [n] float64 each.
struct DivergenceRows {
  at::Tensor kd, teacher_mass, student_mass, masked_mass;
};

class AtenTeacher {
 public:
  virtual ~AtenTeacher() = default;
  // The divergence of rows [begin, begin + n), which `logits` [n, own columns] belong to. Reduces
  // the statistics of `softmax` with its own, in as many all-reduces as docs/losses.md says. With
  // loss.gradient the gradient of loss.ce_weight CE + loss.kd_weight KD is written over `logits`.
  virtual DivergenceRows chunk(int64_t begin, at::Tensor logits, TargetSoftmax& softmax,
                               const RowLoss& loss) = 0;
  // Does the same by one kernel, where there is one: [7, n] float64 as DistillChunks sums them.
  // Undefined where there is none. With loss.gradient it is written in `gradient`, as device_rows.h
  // says.
  virtual at::Tensor kernel_rows(int64_t /*begin*/, at::Tensor /*logits*/,
                                 const at::Tensor& /*targets*/, const RowLoss& /*loss*/,
                                 GradientDtype /*gradient*/) {
    return {};
  }
  // The floats that a row needs beside the student's logits: the same number on every rank.
  virtual int64_t floats_per_row() const = 0;
  // After the last chunk: [R] int32 RowStatus of the teacher's rows, the same on all ranks;
  // undefined where they were looked at before.
  virtual at::Tensor status() const { return {}; }
};

// `common`: ids that take part; the signal has been checked. `vocab` and `signal` must outlive the
// result. Hidden: kMismatch, on all ranks alike, if the ranks' rows of the teacher's head do not
// line up. One all-gather.
std::unique_ptr<AtenTeacher> make_aten_dense(const TeacherHidden& signal, const VocabGroup& vocab,
                                             int64_t common, const DivergenceOptions& options);
std::unique_ptr<AtenTeacher> make_aten_dense(const TeacherFull& signal, const VocabGroup& vocab,
                                             int64_t common);
std::unique_ptr<AtenTeacher> make_aten_top_k(const TeacherTopK& signal, const VocabGroup& vocab,
                                             int64_t common);
// The teacher of draws, from weighted ids on the device of the logits.
std::unique_ptr<AtenTeacher> make_aten_sampled(const WeightedIds& weighted, const VocabGroup& vocab,
                                               int64_t common);
// [R] int32 RowStatus by ids and numbers of a top-k payload. No collective.
at::Tensor top_k_status(const TeacherTopK& signal, int64_t common);

// [n] int32 RowStatus of a teacher's rows: maximum and sum of exponentials, and how far the log of
// its mass may be off (< 0: any).
at::Tensor teacher_status(const at::Tensor& max, const at::Tensor& sum, double max_abs_log_mass);
// Throws what the first row says that is not kOk. Waits for a device.
void refuse_first(const at::Tensor& status);
// The same for later: returns what refuse_coded() takes, a float64 scalar where the status is.
at::Tensor code_of_first(const at::Tensor& status);

// logits = ce_weight (softmax - onehot), plus kd_weight * divergence on the first columns.
void write_gradient(at::Tensor logits, const TargetSoftmax& softmax, const RowLoss& loss,
                    const at::Tensor& divergence);

}  // namespace retort::losses::detail
