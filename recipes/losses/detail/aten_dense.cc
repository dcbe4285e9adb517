#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "base/error.h"
#include "recipes/losses/detail/aten_divergence.h"
#include "recipes/losses/detail/aten_teacher.h"
#include "recipes/losses/detail/head_products.h"
#include "recipes/losses/detail/teacher_checks.h"

namespace retort::losses::detail {
namespace {

// A teacher with a number for each id. The first own_below(common) of its columns stand beside the
// student's first ones; the others are ids that the divergence masks.
class DenseTeacher : public AtenTeacher {
 public:
  DenseTeacher(const VocabGroup& vocab, int64_t common, double inv_temperature,
               double max_abs_log_mass, bool has_masked, const at::TensorOptions& options,
               int64_t rows)
      : vocab_(vocab),
        common_(common),
        own_common_(vocab.own_below(common)),
        inv_temperature_(inv_temperature),
        max_abs_log_mass_(max_abs_log_mass),
        has_masked_(has_masked),
        status_(at::zeros({rows}, options.dtype(at::kInt).requires_grad(false))) {}

  DivergenceRows chunk(int64_t begin, at::Tensor logits, TargetSoftmax& softmax,
                       const RowLoss& loss) override {
    // Both sides are narrowed to the ids that take part; the teacher's other columns are masked.
    const int64_t count = logits.size(0);
    const at::Tensor all = load(begin, count);
    const at::Tensor teacher = all.narrow(1, 0, own_common_);
    const at::Tensor masked = all.narrow(1, own_common_, all.size(1) - own_common_);
    const at::Tensor student = logits.narrow(1, 0, own_common_);

    // Over the same ids the divergence has the cross-entropy's maximum, and at temperature 1 its
    // whole softmax.
    const bool same_ids = common_ == vocab_.total();
    const bool shared = same_ids && loss.inv_temperature == 1.0f;

    // First reduction: the maxima of all softmaxes. They go together, because each reduction of a
    // split vocabulary is a round trip between the ranks.
    at::Tensor student_max = same_ids ? at::Tensor() : row_max(student);
    at::Tensor teacher_max = row_max(teacher);
    at::Tensor masked_max = row_max(masked);
    std::vector<at::Tensor*> maxima{&softmax.max, &teacher_max};
    if (!same_ids) maxima.push_back(&student_max);
    if (has_masked_) maxima.push_back(&masked_max);
    vocab_.max(maxima);

    // The exponentials are taken below the maximum of the whole row, which another rank may hold.
    softmax.exponentials(logits);
    Side s = shared
                 ? softmax.side
                 : side_below(student, same_ids ? softmax.max : student_max, loss.inv_temperature);
    Side t = side_below(teacher, teacher_max, inv_temperature_);
    at::Tensor masked_sum = side_below(masked, masked_max, inv_temperature_).sum;

    // Second reduction: the normalisers, and what the KLs sum without them.
    DivergenceSums moments;
    std::vector<at::Tensor*> sums = softmax.sums();
    sums.push_back(&t.sum);
    if (!shared) sums.push_back(&s.sum);
    if (has_masked_) sums.push_back(&masked_sum);
    if (!sums_need_normalisers(loss.type)) {
      moments = divergence_sums(loss, s, t);
      sums.push_back(&moments.first);
    }
    vocab_.sum(sums);
    if (shared) s.sum = softmax.side.sum;

    // Third reduction: divergences that compare probabilities can be summed only now that both
    // normalisers are known.
    if (sums_need_normalisers(loss.type)) {
      moments = divergence_sums(loss, s, t);
      vocab_.sum({&moments.first, &moments.second});
    }

    // The logits are not read any more, so the gradient may take their place.
    status_.narrow(0, begin, count).copy_(teacher_status(teacher_max, t.sum, max_abs_log_mass_));
    const RowMoments row = divergence_moments(loss, moments, s, t);
    if (loss.gradient) write_gradient(logits, softmax, loss, divergence_gradient(loss, row, s, t));
    const at::Tensor ones = at::ones_like(t.sum);
    return {row.value, ones, ones,
            has_masked_ ? masked_mass(masked_max, masked_sum, teacher_max, t.sum)
                        : at::zeros_like(t.sum)};
  }
  at::Tensor kernel_rows(int64_t begin, at::Tensor logits, const at::Tensor& targets,
                         const RowLoss& loss, GradientDtype gradient) override {
    if (vocab_.split() || !has_row_kernels(logits)) return {};
    const int64_t count = logits.size(0);
    const at::Tensor teacher = load(begin, count).contiguous();
    const at::Tensor rows =
        divergence_rows(logits, teacher, common_, targets, loss, inv_temperature_, gradient);
    const auto number = [&](int64_t i) { return rows.select(0, i); };
    status_.narrow(0, begin, count)
        .copy_(teacher_status(number(5).to(at::kFloat), number(6), max_abs_log_mass_));
    const at::Tensor ones = at::ones_like(number(0));
    return at::stack({number(0), number(1), ones, ones, number(4), number(2), number(3)});
  }
  at::Tensor status() const override { return status_; }

 protected:
  // [count, own columns] float32.
  virtual at::Tensor load(int64_t begin, int64_t count) = 0;

 private:
  // The teacher's mass on the masked ids. It is formed from a maximum of their own, because they
  // may have more mass than the rest.
  at::Tensor masked_mass(const at::Tensor& max, const at::Tensor& sum, const at::Tensor& kept_max,
                         const at::Tensor& kept_sum) const {
    const at::Tensor gap = (max.to(at::kDouble) - kept_max) * inv_temperature_;
    return (kept_sum / sum * (-gap).exp() + 1).reciprocal();
  }

  const VocabGroup& vocab_;
  int64_t common_;      // ids that take part
  int64_t own_common_;  // how many of them this rank has
  double inv_temperature_;
  double max_abs_log_mass_;  // how far the log of a row's mass may be off 0; < 0: any
  bool has_masked_;          // on any rank
  at::Tensor status_;
};

class HiddenTeacher : public DenseTeacher {
 public:
  HiddenTeacher(const TeacherHidden& signal, const VocabGroup& vocab, int64_t common,
                int64_t teacher_vocab, double inv_temperature)
      : DenseTeacher(vocab, common, inv_temperature, -1, teacher_vocab > common,
                     signal.hidden.options(), signal.hidden.size(0)),
        floats_per_row_(
            std::max(vocab.rows_per_rank(), vocab.rows_per_rank() + teacher_vocab - vocab.total())),
        products_(signal.hidden, signal.weight, signal.bias) {}

  int64_t floats_per_row() const override { return floats_per_row_; }

 protected:
  at::Tensor load(int64_t begin, int64_t count) override {
    return products_.logits(products_.rows(begin, count));
  }

 private:
  int64_t floats_per_row_;
  HeadProducts products_;
};

class FullTeacher : public DenseTeacher {
 public:
  FullTeacher(const TeacherFull& signal, const VocabGroup& vocab, int64_t common)
      : DenseTeacher(vocab, common, 1, log_mass_tolerance(signal.logps.scalar_type()), false,
                     signal.logps.options(), signal.logps.size(0)),
        floats_per_row_(signal.logps.scalar_type() == at::kFloat ? 0 : vocab.rows_per_rank()),
        logps_(signal.logps.detach()) {}

  int64_t floats_per_row() const override { return floats_per_row_; }

 protected:
  at::Tensor load(int64_t begin, int64_t count) override {
    return logps_.narrow(0, begin, count).to(at::kFloat);
  }

 private:
  int64_t floats_per_row_;
  at::Tensor logps_;
};

// Returns how many ids the teacher has over all ranks. Checks that each rank has those that stand
// beside its student's, and the last rank with any of the student's ids all that follow. Every rank
// looks at the same gathered numbers, so all throw or none.
int64_t teacher_ids(const VocabGroup& vocab, int64_t own_rows) {
  const at::Tensor rows = vocab.gather(own_rows);
  const int64_t* count = rows.const_data_ptr<int64_t>();
  const int64_t ranks = rows.numel();
  int64_t total = 0;
  int64_t last = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    total += count[rank];
    if (vocab.rows_of(rank) > 0) last = rank;
  }

  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t above = std::max<int64_t>(total - vocab.begin_of(rank), 0);
    const int64_t expected = rank == last ? above : std::min(above, vocab.rows_of(rank));
    if (count[rank] != expected)
      throw Error(ErrorCode::kMismatch,
                  "the rows of the teacher's head do not stand beside the student's: each rank "
                  "holds the teacher's rows of its student's ids, the last rank with any of these "
                  "all that follow")
          .with("rank", rank)
          .with("teacher_rows", count[rank])
          .with("expected", expected)
          .with("teacher_vocab", total);
  }
  return total;
}

}  // namespace

std::unique_ptr<AtenTeacher> make_aten_dense(const TeacherHidden& signal, const VocabGroup& vocab,
                                             int64_t common, const DivergenceOptions& options) {
  const int64_t teacher_vocab = teacher_ids(vocab, signal.weight.size(0));
  check_vocabularies(teacher_vocab, vocab.total(), options);
  return std::make_unique<HiddenTeacher>(signal, vocab, common, teacher_vocab,
                                         static_cast<float>(1.0 / options.temperature));
}

std::unique_ptr<AtenTeacher> make_aten_dense(const TeacherFull& signal, const VocabGroup& vocab,
                                             int64_t common) {
  return std::make_unique<FullTeacher>(signal, vocab, common);
}

}  // namespace retort::losses::detail
