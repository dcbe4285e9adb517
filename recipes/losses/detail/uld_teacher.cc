#include "recipes/losses/detail/uld_teacher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "recipes/losses/detail/aten_teacher.h"
#include "recipes/losses/detail/head_products.h"
#include "recipes/losses/detail/teacher_checks.h"

namespace retort::losses::detail {
namespace {

// A teacher with a number for each id, whose rows are formed in the order of the groups: first the
// last rows, then the earlier ones.
class DenseUldTeacher : public UldTeacher {
 public:
  DenseUldTeacher(const UldTeacherInputs& inputs, const VocabGroup& vocab, double max_abs_log_mass)
      : vocab_(vocab),
        ids_(inputs.ids),
        groups_(inputs.rows.last.size(0)),
        order_(at::cat({inputs.rows.last, inputs.rows.earlier})),
        targets_(inputs.targets.index_select(0, inputs.rows.earlier)),
        max_abs_log_mass_(max_abs_log_mass),
        status_(at::zeros(inputs.targets.sizes(), inputs.targets.options().dtype(at::kInt))) {}

  Chunk chunk(int64_t begin, int64_t count) override {
    const at::Tensor logits = whole(begin, count);
    judge(begin, logits);
    return {at::softmax(logits, 1), {}};
  }
  at::Tensor earlier_log_probs(int64_t rows_at_once) override {
    const int64_t rows = targets_.size(0);
    const at::Tensor result = at::empty({rows}, targets_.options().dtype(at::kFloat));
    for (int64_t begin = 0; begin < rows; begin += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - begin);
      const at::Tensor logits = whole(groups_ + begin, count);
      const at::Tensor log_sum = judge(groups_ + begin, logits);
      const at::Tensor token = targets_.narrow(0, begin, count).unsqueeze(1);
      result.narrow(0, begin, count).copy_(logits.gather(1, token).squeeze(1) - log_sum);
    }
    return result;
  }
  int64_t floats_per_row() const override { return vocab_.total(); }
  at::Tensor status() const override { return status_; }

 protected:
  // [count, own columns] float32 of the rows order()[begin, begin + count), at the temperature.
  virtual at::Tensor load(int64_t begin, int64_t count) = 0;
  const at::Tensor& order() const { return order_; }

 private:
  at::Tensor whole(int64_t begin, int64_t count) {
    return vocab_.whole_rows(load(begin, count)).narrow(1, 0, ids_);
  }
  // Notes whether the rows can be, and returns their logsumexp.
  at::Tensor judge(int64_t begin, const at::Tensor& logits) {
    const at::Tensor log_sum = at::logsumexp(logits, {1});
    // A row that is not finite has no difference from itself, and so a sum that is NaN.
    const at::Tensor one = log_sum.sub(log_sum).exp_().to(at::kDouble);
    status_.index_copy_(0, order_.narrow(0, begin, logits.size(0)),
                        teacher_status(log_sum, one, max_abs_log_mass_));
    return log_sum;
  }

  VocabGroup vocab_;
  int64_t ids_;     // those that take part
  int64_t groups_;  // how many of the rows are last ones
  at::Tensor order_;
  at::Tensor targets_;       // of the earlier rows
  double max_abs_log_mass_;  // how far the log of a row's mass may be off 0; < 0: any
  at::Tensor status_;
};

class HiddenUldTeacher : public DenseUldTeacher {
 public:
  HiddenUldTeacher(const TeacherHidden& signal, const UldTeacherInputs& inputs,
                   const VocabGroup& vocab)
      : DenseUldTeacher(inputs, vocab, -1),
        inv_temperature_(1 / inputs.temperature),
        products_(signal.hidden.index_select(0, order()), signal.weight, signal.bias) {}

 protected:
  at::Tensor load(int64_t begin, int64_t count) override {
    at::Tensor logits = products_.logits(products_.rows(begin, count));
    return inv_temperature_ == 1 ? logits : logits.mul_(inv_temperature_);
  }

 private:
  double inv_temperature_;
  HeadProducts products_;
};

class FullUldTeacher : public DenseUldTeacher {
 public:
  FullUldTeacher(const TeacherFull& signal, const UldTeacherInputs& inputs, const VocabGroup& vocab)
      : DenseUldTeacher(inputs, vocab, log_mass_tolerance(signal.logps.scalar_type())),
        logps_(signal.logps) {}

 protected:
  at::Tensor load(int64_t begin, int64_t count) override {
    return logps_.index_select(0, order().narrow(0, begin, count)).to(at::kFloat);
  }

 private:
  at::Tensor logps_;
};

class TopKUldTeacher : public UldTeacher {
 public:
  TopKUldTeacher(const TeacherTopK& signal, const UldTeacherInputs& inputs)
      : signal_(signal),
        rows_(inputs.rows),
        targets_(inputs.targets),
        status_(top_k_status(signal, inputs.ids)) {}

  Chunk chunk(int64_t begin, int64_t count) override {
    const at::Tensor rows = rows_.last.narrow(0, begin, count);
    const at::Tensor p = signal_.logps.index_select(0, rows).to(at::kFloat).exp_();
    return {std::get<0>(at::sort(p, 1, /*descending=*/true)),
            signal_.log_tail.index_select(0, rows).to(at::kFloat).exp_()};
  }
  at::Tensor earlier_log_probs(int64_t /*rows_at_once*/) override {
    const auto of_rows = [&](const at::Tensor& all) { return all.index_select(0, rows_.earlier); };
    const at::Tensor ids = of_rows(signal_.ids);
    const at::Tensor logps = of_rows(signal_.logps).to(at::kFloat);
    // A token that is not among the K is no likelier than the least of them, nor than the rest.
    // Places that only fill the row have no least.
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const at::Tensor least = logps.masked_fill(ids < 0, kInfinity).amin(1);
    const at::Tensor bound = at::minimum(least, of_rows(signal_.log_tail).to(at::kFloat));
    const at::Tensor is_token = ids == of_rows(targets_).unsqueeze(1);
    const at::Tensor named = logps.masked_fill(is_token.logical_not(), -kInfinity).amax(1);
    return at::where(is_token.any(1), named, bound);
  }
  int64_t floats_per_row() const override { return signal_.ids.size(1); }
  at::Tensor status() const override { return status_; }

 private:
  TeacherTopK signal_;
  SideRows rows_;
  at::Tensor targets_;
  at::Tensor status_;
};

}  // namespace

std::unique_ptr<UldTeacher> make_uld_teacher(const UldTeacherInputs& inputs,
                                             const VocabGroup& vocab) {
  if (const auto* top_k = std::get_if<TeacherTopK>(&inputs.signal))
    return std::make_unique<TopKUldTeacher>(*top_k, inputs);
  if (const auto* full = std::get_if<TeacherFull>(&inputs.signal))
    return std::make_unique<FullUldTeacher>(*full, inputs, vocab);
  return std::make_unique<HiddenUldTeacher>(std::get<TeacherHidden>(inputs.signal), inputs, vocab);
}

}  // namespace retort::losses::detail
