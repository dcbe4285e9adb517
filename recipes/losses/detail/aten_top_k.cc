#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <utility>

#include "recipes/losses/detail/aten_divergence.h"
#include "recipes/losses/detail/aten_teacher.h"
#include "recipes/losses/detail/teacher_checks.h"

namespace retort::losses::detail {
namespace {

// The coarse distributions: the K ids and, unless these are all common ids, the rest as one more
// category. [n, K (+ 1)] float64, the same on every rank.
struct Coarse {
  Side student;
  Side teacher;
  at::Tensor teacher_k;  // [n] sum over K of the teacher's e
};

struct CoarseLoss {
  at::Tensor kd;        // [n]
  at::Tensor gradient;  // [n, K (+ 1)] by the coarse logits
};

Side coarse_side(const at::Tensor& logits) { return side_below(logits, row_max(logits), 1); }

CoarseLoss bucket_loss(const Coarse& c, const RowLoss& loss) {
  const RowMoments moments =
      divergence_moments(loss, divergence_sums(loss, c.student, c.teacher), c.student, c.teacher);
  return {moments.value,
          loss.gradient ? divergence_gradient(loss, moments, c.student, c.teacher) : at::Tensor()};
}

// sum over K of w (log w' - log p) with p of the whole vocabulary: renormalize has w = w' = q / m,
// drop has w = w' = q.
CoarseLoss truncated_loss(const Coarse& c, int64_t k, const RowLoss& loss) {
  // The weights of the K ids are the teacher's e over `sum`; they come to `mass`.
  const bool drop = loss.tail == Tail::kDrop;
  const at::Tensor sum = drop ? c.teacher.sum : c.teacher_k;
  const at::Tensor mass = c.teacher_k / sum;  // 1 when renormalised

  // The divergence's own sum has forward KL's terms, over the K ids alone.
  const auto of_ids = [&](const Side& side) {
    return Side{side.x.narrow(1, 0, k), side.e.narrow(1, 0, k), side.sum};
  };
  const DivergenceSums sums =
      divergence_sums({.type = DivergenceType::kForwardKl}, of_ids(c.student), of_ids(c.teacher));
  CoarseLoss result{sums.first / sum - mass * (sum.log() - c.student.sum.log()), {}};
  if (!loss.gradient) return result;

  // d / d(logit) = mass p, less the teacher's weight at its ids.
  result.gradient = c.student.e * as_column(mass / c.student.sum, c.student.e);
  result.gradient.narrow(1, 0, k).sub_(c.teacher.e.narrow(1, 0, k) *
                                       as_column(sum.reciprocal(), c.teacher.e));
  return result;
}

class TopKTeacher : public AtenTeacher {
 public:
  // `scale`, `offset`, `distinct`: as in WeightedIds, of draws; else undefined.
  TopKTeacher(const TeacherTopK& signal, const VocabGroup& vocab, int64_t common,
              at::Tensor scale = {}, at::Tensor offset = {}, const at::Tensor& distinct = {})
      : vocab_(vocab),
        own_common_(vocab.own_below(common)),
        has_rest_(signal.ids.size(1) < common || signal.padded),
        ids_(signal.ids),
        logps_(signal.logps.detach()),
        log_tail_(signal.log_tail.detach()),
        scale_(std::move(scale)),
        offset_(std::move(offset)) {
    if (signal.padded) none_ = ids_.lt(0);
    if (distinct.defined())
      not_drawn_ = at::arange(k(), distinct.options()).unsqueeze(0).ge(distinct.unsqueeze(1));
  }

  int64_t floats_per_row() const override { return k(); }

  DivergenceRows chunk(int64_t begin, at::Tensor logits, TargetSoftmax& softmax,
                       const RowLoss& loss) override {
    // The student's logits at the ids, 0 where another rank has the id, so that their sum over the
    // ranks has all. In the copy they are taken out of the row, which leaves the rest. The last
    // column stands for the ids of other ranks.
    const int64_t count = logits.size(0);
    const at::Tensor columns = at::empty({count, own_common_ + 1}, logits.options());
    const at::Tensor own = columns.narrow(1, 0, own_common_);
    own.copy_(logits.narrow(1, 0, own_common_));
    columns.select(1, own_common_).zero_();
    at::Tensor index = ids_.narrow(0, begin, count).to(at::kLong) - vocab_.begin();
    index.masked_fill_((index < 0).logical_or_(index >= own_common_), own_common_);
    at::Tensor at_ids = columns.gather(1, index);
    columns.scatter_(1, index, -std::numeric_limits<double>::infinity());

    // Two reductions bring the ranks together: the maxima, then the normalisers and the logits at
    // the ids.
    at::Tensor rest_max = row_max(own);
    vocab_.max({&softmax.max, &rest_max});
    softmax.exponentials(logits);
    Side rest = side_below(own, rest_max, loss.inv_temperature);
    std::vector<at::Tensor*> sums = softmax.sums();
    sums.push_back(&rest.sum);
    sums.push_back(&at_ids);
    vocab_.sum(sums);
    // A padded place has taken the 0 that stands for the ids of other ranks; it gets no mass.
    if (none_.defined())
      at_ids.masked_fill_(none_.narrow(0, begin, count), -std::numeric_limits<double>::infinity());

    // Every rank computes the loss of the coarse distributions from the same numbers, so nothing
    // more is exchanged.
    const Coarse coarse =
        coarsen(begin, at_ids, rest_max.to(at::kDouble), rest.sum, loss.inv_temperature);
    CoarseLoss result = coarse_loss(coarse, loss);
    at::Tensor teacher_mass = coarse.teacher_k / coarse.teacher.sum;
    at::Tensor of_ids = coarse.student.e.narrow(1, 0, k());
    // Draws: the loss of the normalised weights is scaled back to the estimate (sampled_weights.h).
    // Ids that only fill the row are no part of the student's mass.
    if (scale_.defined()) {
      const at::Tensor scale = scale_.narrow(0, begin, count);
      result.kd = result.kd * scale + offset_.narrow(0, begin, count);
      if (loss.gradient) result.gradient.mul_(as_column(scale, result.gradient));
      teacher_mass = teacher_mass * scale;
      of_ids = of_ids.masked_fill(not_drawn_.narrow(0, begin, count), 0);
    }

    // The coarse gradient goes back to the columns: an id of the rest gets its share of the rest's
    // gradient.
    if (loss.gradient) {
      if (has_rest_) {
        const at::Tensor share =
            (result.gradient.select(1, k()) / rest.sum).masked_fill_(rest.sum == 0, 0);
        own.copy_(rest.e).mul_(as_column(share, own));
      }
      columns.scatter_(1, index, result.gradient.narrow(1, 0, k()).to(at::kFloat));
      write_gradient(logits, softmax, loss, own);
    }
    return {result.kd, teacher_mass, of_ids.sum(1) / coarse.student.sum, at::zeros_like(result.kd)};
  }

 private:
  int64_t k() const { return ids_.size(1); }

  CoarseLoss coarse_loss(const Coarse& coarse, RowLoss loss) const {
    if (scale_.defined()) loss.tail = Tail::kRenormalize;
    return loss.tail == Tail::kBucket ? bucket_loss(coarse, loss)
                                      : truncated_loss(coarse, k(), loss);
  }

  Coarse coarsen(int64_t begin, const at::Tensor& at_ids, const at::Tensor& rest_max,
                 const at::Tensor& rest_sum, double inv_temperature) const {
    const int64_t count = at_ids.size(0);
    const at::Tensor top = has_rest_ ? at::maximum(at_ids.amax(1), rest_max) : at_ids.amax(1);
    at::Tensor student = (at_ids - top.unsqueeze(1)) * inv_temperature;
    at::Tensor teacher = logps_.narrow(0, begin, count).to(at::kDouble);
    if (has_rest_) {
      const at::Tensor log_rest = (rest_max - top) * inv_temperature + rest_sum.log();
      student = at::cat({student, log_rest.unsqueeze(1)}, 1);
      teacher =
          at::cat({teacher, log_tail_.narrow(0, begin, count).to(at::kDouble).unsqueeze(1)}, 1);
    }
    Coarse coarse{coarse_side(student), coarse_side(teacher), {}};
    coarse.teacher_k = coarse.teacher.e.narrow(1, 0, k()).sum(1);
    return coarse;
  }

  const VocabGroup& vocab_;
  int64_t own_common_;
  bool has_rest_;  // whether there are common ids beyond the K
  at::Tensor ids_;
  at::Tensor logps_;
  at::Tensor log_tail_;
  at::Tensor scale_, offset_;  // [R] float64
  at::Tensor not_drawn_;       // [R, K] bool
  at::Tensor none_;            // likewise: padding
};

}  // namespace

at::Tensor top_k_status(const TeacherTopK& signal, int64_t common) {
  if (signal.ids.size(0) == 0) return at::zeros({0}, signal.ids.options().dtype(at::kInt));
  const int64_t k = signal.ids.size(1);
  at::Tensor numbers = signal.logps.detach().to(at::kDouble);
  if (k < common || signal.padded)
    numbers = at::cat({numbers, signal.log_tail.detach().to(at::kDouble).unsqueeze(1)}, 1);
  const at::Tensor max = row_max(numbers);
  at::Tensor status = teacher_status(max, side_below(numbers, max, 1).sum,
                                     log_mass_tolerance(signal.logps.scalar_type()));

  // The ids are judged last and overwrite the numbers' status: an id that cannot be says more.
  const auto mark = [&](const at::Tensor& rows, RowStatus as) {
    status.masked_fill_(rows, static_cast<int64_t>(as));
  };
  at::Tensor ids = signal.ids;
  if (signal.padded)  // by what is in no row
    ids = at::where(ids.eq(-1), at::arange(common, common + k, ids.options()).unsqueeze(0), ids);
  const at::Tensor sorted = std::get<0>(at::sort(ids, 1));
  mark((sorted.narrow(1, 0, k - 1) == sorted.narrow(1, 1, k - 1)).any(1), RowStatus::kIdRepeated);
  mark((signal.ids < (signal.padded ? -1 : 0)).logical_or_(signal.ids >= common).any(1),
       RowStatus::kIdOutOfRange);
  return status;
}

std::unique_ptr<AtenTeacher> make_aten_top_k(const TeacherTopK& signal, const VocabGroup& vocab,
                                             int64_t common) {
  return std::make_unique<TopKTeacher>(signal, vocab, common);
}

std::unique_ptr<AtenTeacher> make_aten_sampled(const WeightedIds& weighted, const VocabGroup& vocab,
                                               int64_t common) {
  return std::make_unique<TopKTeacher>(weighted.ids, vocab, common, weighted.scale, weighted.offset,
                                       weighted.distinct);
}

}  // namespace retort::losses::detail
