// The teacher's side of a chunk for the row kernels: one class per payload, each turning a
// student's row into its divergence and gradient. On the ATen path it is aten_teacher.h.
#pragma once

#include <cstdint>
#include <memory>

#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses::detail {

class TeacherRows {
 public:
  virtual ~TeacherRows() = default;
  // Makes rows [begin, begin + count) ready. On the calling thread, no autograd.
  virtual void load(int64_t begin, int64_t count) = 0;
  // The divergence of loaded row begin + r. Any row thread; `thread` indexes its scratch.
  virtual RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss,
                        int thread) const = 0;
  // The floats that a row needs beside the student's logits.
  virtual int64_t floats_per_row() const = 0;
};

// kInvalidArgument / kMismatch when the signal's shapes, dtypes or vocabulary cannot belong to
// `rows` rows of a student with `vocab` ids. `signal` must outlive the result.
std::unique_ptr<TeacherRows> make_teacher_rows(const TeacherSignal& signal, int64_t rows,
                                               int64_t vocab, const DivergenceOptions& options);

}  // namespace retort::losses::detail
