// cross_entropy, dense and top_k for one instruction set. Included only by row_kernels_<isa>.cc.
#pragma once

#include "recipes/losses/detail/divergence_passes.h"

namespace retort::losses::detail::RETORT_ISA {

// Softmax of the whole row at temperature 1, and what the metrics want of it.
static Side cross_entropy_stats(const StudentRow& row, RowResult& result) {
  Side side{row.logits, max_of(row.logits, row.vocab), 1.0f};
  Sum sum, moment;
  for (int64_t i = 0; i < row.vocab; i += kLanes) {
    const Vec x = side.shifted(i, row.vocab - i);
    const Vec e = exp_negative(x);
    sum.add(e);
    moment.add(e == 0.0f ? Vec{} : e * x);
  }
  side.sum = sum.total();

  const float at_target = row.logits[row.target];
  result.log_prob = static_cast<double>(at_target) - side.max - side.log_sum();
  result.entropy = side.log_sum() - moment.total() / side.sum;
  // The first of equal maxima is the argmax, as on the ATen path.
  if (at_target == side.max) {
    int64_t first = 0;
    while (row.logits[first] != side.max)
      ++first;
    result.correct = first == row.target;
  }
  return side;
}

// p (ce_weight - entropy_weight (log p + entropy)) over the logits.
static void entropy_gradient_pass(const Side& side, double entropy, const RowLoss& loss,
                                  const StudentRow& row) {
  const float inverse = side.inverse();
  const float shift = static_cast<float>(entropy - side.log_sum());
  for (int64_t i = 0; i < row.vocab; i += kLanes) {
    const int64_t left = row.vocab - i;
    const Vec x = side.shifted(i, left);
    const Vec e = exp_negative(x);
    const Vec g = e * inverse * (loss.ce_weight - loss.entropy_weight * (x + shift));
    store(row.logits + i, left, e == 0.0f ? Vec{} : g);
  }
}

static RowResult cross_entropy(const StudentRow& row, const RowLoss& loss) {
  RowResult result;
  const Side side = cross_entropy_stats(row, result);
  if (loss.gradient) {
    const float weight = loss.times_probability
                             ? loss.ce_weight * static_cast<float>(__builtin_exp(result.log_prob))
                             : loss.ce_weight;
    if (loss.entropy_weight == 0)
      softmax_pass(side, weight * side.inverse(), side, 0, 0, row.vocab, row.logits);
    else
      entropy_gradient_pass(side, result.entropy, loss, row);
    row.logits[row.target] -= weight;
  }
  return result;
}

// False for NaN as well.
static bool finite_mass(const Side& side) { return side.sum > 0 && side.sum < __builtin_inf(); }

// The teacher's mass on ids >= n, from a maximum of their own: the masked part may be the larger
// one.
static double masked_mass(const DenseTeacherRow& teacher, int64_t n, const Side& kept) {
  Side masked{teacher.logits + n, max_of(teacher.logits + n, teacher.vocab - n),
              teacher.inv_temperature};
  if (masked.max == -__builtin_inff()) return 0;
  masked.sum = sum_exp(masked, 0, teacher.vocab - n);
  const double gap = (static_cast<double>(masked.max) - kept.max) * teacher.inv_temperature;
  return 1 / (1 + kept.sum / masked.sum * __builtin_exp(-gap));
}

static RowResult dense(const StudentRow& row, const DenseTeacherRow& teacher, const RowLoss& loss) {
  // The student's softmax at the divergence's temperature over the common ids is, at temperature 1
  // over the whole vocabulary, the cross-entropy's.
  RowResult result;
  const Side ce = cross_entropy_stats(row, result);
  const int64_t n = row.common;
  const bool shared = loss.inv_temperature == 1.0f && n == row.vocab;
  const Side s = shared ? ce : softmax_side(row.logits, n, loss.inv_temperature);
  Side t = softmax_side(teacher.logits, n, teacher.inv_temperature);

  // A teacher that is no distribution is the caller's to refuse.
  if (!finite_mass(t)) {
    result.status = RowStatus::kTeacherNotFinite;
    return result;
  }
  if (teacher.max_abs_log_mass >= 0 &&
      !(__builtin_fabs(t.max + t.log_sum()) <= teacher.max_abs_log_mass)) {
    result.status = RowStatus::kTeacherNotNormal;
    return result;
  }
  result.teacher_mass = 1;
  result.student_mass = 1;
  if (teacher.vocab > n) result.masked_mass = masked_mass(teacher, n, t);

  // The value comes first, because the gradient needs its mean; the cross-entropy's part is written
  // in the same pass.
  with_divergence(loss.type, [&]<DivergenceType D>() {
    const Moments moments = divergence_value<D>(s, t, n, loss.mix);
    result.kd = moments.value;
    if (!loss.gradient) return;
    const GradientWeights w{loss.kd_weight, loss.ce_weight, &ce};
    if (loss.ce_weight == 0)
      divergence_gradient_pass<D, CePart::kNone>(s, t, n, loss.mix, moments, w, row.logits);
    else if (shared)
      divergence_gradient_pass<D, CePart::kShared>(s, t, n, loss.mix, moments, w, row.logits);
    else
      divergence_gradient_pass<D, CePart::kSeparate>(s, t, n, loss.mix, moments, w, row.logits);
  });

  // The ids beyond the common ones have the cross-entropy's gradient alone.
  if (loss.gradient) {
    if (n < row.vocab)
      softmax_pass(ce, loss.ce_weight * ce.inverse(), ce, 0, n, row.vocab, row.logits);
    row.logits[row.target] -= loss.ce_weight;
  }
  return result;
}

// Copies the student's logits at the ids into scratch.raw and takes them out of the row (-inf).
static RowStatus take_ids(const StudentRow& row, const TopKTeacherRow& teacher,
                          const TopKScratch& scratch) {
  for (int64_t i = 0; i < teacher.k; ++i) {
    const int32_t id = teacher.ids[i];
    if (id < 0 || id >= row.common) return RowStatus::kIdOutOfRange;
    if (scratch.seen[id] == scratch.row) return RowStatus::kIdRepeated;
    scratch.seen[id] = scratch.row;
    scratch.raw[i] = row.logits[id];
  }
  for (int64_t i = 0; i < teacher.k; ++i)
    row.logits[teacher.ids[i]] = -__builtin_inff();
  return RowStatus::kOk;
}

// The student's and the teacher's coarse distributions: K ids and, unless K is the whole common
// vocabulary, the rest.
struct Coarse {
  Side student;
  Side teacher;
  Side rest;             // the complement in the student's row
  float log_rest = 0;    // its logsumexp, on the scale of the shifted coarse logits
  double teacher_k = 0;  // sum over K of exp(logp - max)
  int64_t n = 0;
};

static Coarse coarsen(const StudentRow& row, const TopKTeacherRow& teacher, float inv_temperature,
                      const TopKScratch& scratch) {
  const int64_t k = teacher.k;
  Coarse c{.student = {scratch.student, 0, 1.0f},
           .teacher = {scratch.teacher, 0, 1.0f},
           .rest = {row.logits, 0, inv_temperature}};
  c.n = k < row.common ? k + 1 : k;

  // The rest is one more category. Its logsumexp is taken from a maximum of its own.
  const float max_k = max_of(scratch.raw, k);
  float top = max_k;
  if (c.n > k) {
    c.rest.max = max_of(row.logits, row.common);
    // The student itself may exclude every other id.
    const bool empty = c.rest.max == -__builtin_inff();
    c.rest.sum = empty ? 0 : sum_exp(c.rest, 0, row.common);
    top = c.rest.max > top ? c.rest.max : top;
    c.log_rest = static_cast<float>((static_cast<double>(c.rest.max) - top) * inv_temperature +
                                    c.rest.log_sum());
    scratch.student[k] = c.log_rest;
    scratch.teacher[k] = teacher.log_tail;
  }

  // Both sides become rows of K (+ 1) logits. The student's are shifted by the largest of all.
  for (int64_t i = 0; i < k; ++i) {
    scratch.student[i] = (scratch.raw[i] - top) * inv_temperature;
    scratch.teacher[i] = teacher.logps[i];
  }

  // The teacher's mass is summed over the K ids first, because truncated losses want that alone.
  c.student = softmax_side(scratch.student, c.n, 1.0f);
  c.teacher.max = max_of(scratch.teacher, c.n);
  c.teacher_k = sum_exp(c.teacher, 0, k);
  c.teacher.sum = c.n > k ? c.teacher_k + sum_exp(c.teacher, k, c.n) : c.teacher_k;
  return c;
}

// Writes the coarse gradient over scratch.student and returns the one of the rest category.
static double bucket_loss(const Coarse& c, int64_t k, const RowLoss& loss,
                          const TopKScratch& scratch, RowResult& result) {
  with_divergence(loss.type, [&]<DivergenceType D>() {
    const Moments moments = divergence_value<D>(c.student, c.teacher, c.n, loss.mix);
    result.kd = moments.value;
    const GradientWeights w{loss.kd_weight, 0, nullptr};
    if (loss.gradient)
      divergence_gradient_pass<D, CePart::kNone>(c.student, c.teacher, c.n, loss.mix, moments, w,
                                                 scratch.student);
  });
  return c.n > k ? scratch.student[k] : 0;
}

// sum over K of w (log w' - log p) with p of the whole vocabulary: renormalize has w = w' = q / m,
// drop has w = w' = q.
static double truncated_loss(const Coarse& c, int64_t k, const RowLoss& loss,
                             const TopKScratch& scratch, RowResult& result) {
  const bool drop = loss.tail == Tail::kDrop;
  Side t = c.teacher;
  const double mass = drop ? c.teacher_k / c.teacher.sum : 1.0;
  if (!drop) t.sum = c.teacher_k;

  Sum sum;
  for (int64_t i = 0; i < k; i += kLanes) {
    const Vec xs = c.student.shifted(i, k - i);
    const Vec xt = t.shifted(i, k - i);
    const Vec q = exp_negative(xt);
    sum.add(zero_unless(q > 0.0f, q * (xt - xs)));
  }
  result.kd = sum.total() / t.sum - mass * (t.log_sum() - c.student.log_sum());
  if (!loss.gradient) return 0;

  // d / d(logit) = mass p, less the teacher's weight at its ids.
  const double rest =
      c.n > k ? __builtin_exp(static_cast<double>(c.log_rest) - c.student.max) / c.student.sum : 0;
  softmax_pass(c.student, static_cast<float>(loss.kd_weight * mass / c.student.sum), t,
               static_cast<float>(-loss.kd_weight / t.sum), 0, k, scratch.student);
  return loss.kd_weight * mass * rest;
}

static RowResult top_k(const StudentRow& row, const TopKTeacherRow& teacher, const RowLoss& loss,
                       const TopKScratch& scratch) {
  // The statistics of the whole row come before the ids are taken out of it.
  RowResult result;
  const Side ce = cross_entropy_stats(row, result);
  const int64_t k = teacher.k;
  result.status = take_ids(row, teacher, scratch);
  if (result.status != RowStatus::kOk) return result;

  // A teacher that is no distribution is the caller's to refuse.
  const Coarse c = coarsen(row, teacher, loss.inv_temperature, scratch);
  if (!finite_mass(c.teacher)) {
    result.status = RowStatus::kTeacherNotFinite;
    return result;
  }
  if (!(__builtin_fabs(c.teacher.max + c.teacher.log_sum()) <= teacher.max_abs_log_mass)) {
    result.status = RowStatus::kTeacherNotNormal;
    return result;
  }

  // Either loss leaves its gradient by the K ids in scratch.student, and returns the rest's.
  result.teacher_mass = c.teacher_k / c.teacher.sum;
  result.student_mass = c.n > k ? sum_exp(c.student, 0, k) / c.student.sum : 1;
  const double rest_gradient = loss.tail == Tail::kBucket
                                   ? bucket_loss(c, k, loss, scratch, result)
                                   : truncated_loss(c, k, loss, scratch, result);
  if (!loss.gradient) return result;

  // An id of the rest gets its share of the rest's gradient; the K ids themselves have been taken
  // out (exp(-inf) = 0).
  const float ce_scale = loss.ce_weight * ce.inverse();
  if (c.n > k)
    softmax_pass(c.rest, c.rest.sum > 0 ? static_cast<float>(rest_gradient / c.rest.sum) : 0.0f, ce,
                 ce_scale, 0, row.common, row.logits);
  if (row.common < row.vocab) softmax_pass(ce, ce_scale, ce, 0, row.common, row.vocab, row.logits);

  // The ids get back into the row, with the coarse gradient and the cross-entropy's.
  if (loss.ce_weight != 0) {
    const Side at_ids{scratch.raw, ce.max, 1.0f, ce.sum};
    softmax_pass(at_ids, ce_scale, at_ids, 0, 0, k, scratch.raw);
  }
  for (int64_t i = 0; i < k; ++i)
    row.logits[teacher.ids[i]] = scratch.student[i] + (loss.ce_weight != 0 ? scratch.raw[i] : 0.0f);
  row.logits[row.target] -= loss.ce_weight;
  return result;
}

}  // namespace retort::losses::detail::RETORT_ISA
