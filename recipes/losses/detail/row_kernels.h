// The element-wise work of the losses on one row of logits: softmax statistics, divergence, and the
// gradient written over the logits.
//
// Use: a whole vocabulary on the CPU; everything else takes the ATen path (aten_losses.h).
// Arithmetic: plain floats, no ATen. Compiled three times (AVX-512, AVX2 + FMA, portable), of which
//   the CPU decides once. Elements are float32, every sum over a row is a double in a fixed order,
//   so a row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "recipes/losses/divergence_type.h"

namespace retort::losses::detail {

struct RowLoss {
  // after its special cases (jsd with beta 0 or 1, skewed with lambda 0) have been resolved
  DivergenceType type = DivergenceType::kForwardKl;
  Tail tail = Tail::kBucket;
  float mix = 0.5f;  // jsd: beta; skewed: lambda
  float inv_temperature = 1;
  float ce_weight = 1;             // of d(ce)/d(logits) in the gradient
  bool times_probability = false;  // ce_weight times p(target); cross_entropy alone
  float kd_weight = 0;             // of d(kd)/d(logits / temperature): kd_ratio * (T^2 or 1) / T
  float entropy_weight = 0;        // of d(entropy)/d(logits); cross_entropy alone
  bool gradient = false;           // write the gradient over the student's logits
};

enum class RowStatus : int32_t {
  kOk,
  kTeacherNotFinite,  // NaN, +inf or no mass at all
  kTeacherNotNormal,  // log-probabilities whose total mass is not 1
  kIdOutOfRange,
  kIdRepeated,
};

struct RowResult {
  double log_prob = 0;  // of the target, temperature 1, whole vocabulary
  double entropy = 0;   // temperature 1
  double kd = 0;
  double teacher_mass = 0, student_mass = 0, masked_mass = 0;
  int32_t correct = 0;
  RowStatus status = RowStatus::kOk;
};

// The student's row: logits[vocab] are overwritten by the gradient when asked.
struct StudentRow {
  float* logits;
  int64_t vocab;
  int64_t common;  // ids [0, common) take part in the divergence
  int64_t target;
};

// The teacher's row as numbers whose softmax is its distribution.
struct DenseTeacherRow {
  const float* logits;      // [vocab]
  int64_t vocab;            // >= common; the ids above are masked
  float inv_temperature;    // 1 for log-probabilities
  double max_abs_log_mass;  // log-probabilities: how far log(sum exp) may be from 0; < 0: no check
};

struct TopKTeacherRow {
  const int32_t* ids;  // [k]
  const float* logps;  // [k]
  int64_t k;
  float log_tail;
  double max_abs_log_mass;
};

// Working memory of one thread, kept between rows.
struct TopKScratch {
  float* student;  // [k + 1]
  float* teacher;  // [k + 1]
  float* raw;      // [k] the student's logits at the ids
  int32_t* seen;   // [common], initialised to -1: the row that last named this id
  int32_t row;     // differs for every row
};

struct RowKernels {
  const char* name;
  RowResult (*cross_entropy)(const StudentRow&, const RowLoss&);
  RowResult (*dense)(const StudentRow&, const DenseTeacherRow&, const RowLoss&);
  RowResult (*top_k)(const StudentRow&, const TopKTeacherRow&, const RowLoss&, const TopKScratch&);
};

// The best variant this CPU runs. Any thread.
const RowKernels& row_kernels();
// One by name ("avx512", "avx2", "portable"), or nullptr where the build or the CPU lacks it: for
// tests that compare them.
const RowKernels* row_kernels_named(const char* name);

}  // namespace retort::losses::detail
