// Checks that a teacher's signal can belong to a student's rows and vocabulary: shapes, dtypes and
// devices. Its numbers are judged where they are used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses::detail {

struct SignalSizes {
  int64_t rows = 0;
  int64_t common = 0;  // ids that take part in the divergence
  // those among this rank's ids: what full log-probabilities are over
  int64_t own_common = 0;
  at::Device device = at::kCPU;  // of the student's hidden states
};

// kInvalidArgument for a divergence that cannot be had of this signal: of draws forward KL alone.
void check_divergence(const TeacherSignal& signal, const DivergenceOptions& options);
// kInvalidArgument for a shape, dtype or device that the signal cannot have, kMismatch for one that
// does not fit `sizes`. Each tensor may be on the device or on the host.
void check_signal(const TeacherSignal& signal, const SignalSizes& sizes);
// The signal there: each tensor itself, or a copy of a host tensor that the calling thread does not
// wait for. Detached.
TeacherSignal moved_to(const at::Device& device, const TeacherSignal& signal);
// options.common_vocab, or all `vocab` ids of the student; kMismatch if it has fewer.
int64_t common_ids(const DivergenceOptions& options, int64_t vocab);
// kMismatch unless the teacher knows all common ids, and as many as the student where nothing says
// which are common.
void check_vocabularies(int64_t teacher_vocab, int64_t vocab, const DivergenceOptions& options);

// Returns how far the log of a payload's total mass may be from 0: rounding of the wire's dtype,
// with room.
double log_mass_tolerance(at::ScalarType dtype);

}  // namespace retort::losses::detail
