#include "recipes/losses/detail/teacher_rows.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "recipes/losses/detail/head_products.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/sampled_weights.h"
#include "recipes/losses/detail/teacher_checks.h"

namespace retort::losses::detail {
namespace {

// Forms the teacher's logits from its hidden states, a chunk at a time.
class HiddenRows : public TeacherRows {
 public:
  HiddenRows(const TeacherHidden& signal, float inv_temperature)
      : inv_temperature_(inv_temperature) {
    hidden_ = signal.hidden.detach();
    weight_ = signal.weight.detach().to(at::kFloat);
    if (signal.bias.defined()) bias_ = signal.bias.detach().to(at::kFloat);
  }

  int64_t vocab() const { return weight_.size(0); }
  int64_t floats_per_row() const override { return vocab(); }

  void load(int64_t begin, int64_t count) override {
    logits_ = at::Tensor();  // frees the last chunk before the next is formed
    logits_ = form_logits(hidden_.narrow(0, begin, count).to(at::kFloat), weight_, bias_);
  }

  RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss, int) const override {
    const float* data = logits_.const_data_ptr<float>() + r * vocab();
    return row_kernels().dense(student, {data, vocab(), inv_temperature_, -1}, loss);
  }

 private:
  float inv_temperature_;
  at::Tensor hidden_, weight_, bias_, logits_;
};

class FullRows : public TeacherRows {
 public:
  FullRows(const TeacherFull& signal, int64_t common) : common_(common) {
    logps_ = signal.logps.detach();
    tolerance_ = log_mass_tolerance(logps_.scalar_type());
  }

  int64_t floats_per_row() const override {
    return logps_.scalar_type() == at::kFloat ? 0 : common_;
  }

  void load(int64_t begin, int64_t count) override {
    chunk_ = logps_.narrow(0, begin, count).to(at::kFloat).contiguous();
  }

  RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss, int) const override {
    const float* data = chunk_.data_ptr<float>() + r * common_;
    return row_kernels().dense(student, {data, common_, 1.0f, tolerance_}, loss);
  }

 private:
  int64_t common_;
  double tolerance_ = 0;
  at::Tensor logps_, chunk_;
};

class TopKRows : public TeacherRows {
 public:
  TopKRows(const TeacherTopK& signal, int64_t common) {
    ids_ = signal.ids.contiguous();
    logps_ = signal.logps.detach();
    log_tail_ = signal.log_tail.detach().to(at::kFloat).contiguous();
    padded_ = signal.padded;
    tolerance_ = log_mass_tolerance(logps_.scalar_type());
    scratch_.resize(row_threads());
    for (Scratch& scratch : scratch_) {
      scratch.floats.resize(3 * (k() + 1));
      scratch.seen.assign(common, -1);
    }
  }

  int64_t k() const { return ids_.size(1); }
  int64_t floats_per_row() const override { return k(); }
  int64_t begin() const { return begin_; }

  void load(int64_t begin, int64_t count) override {
    begin_ = begin;
    chunk_ = logps_.narrow(0, begin, count).to(at::kFloat).contiguous();
  }

  RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss,
                int thread) const override {
    return row_of_first(padded_ ? named(begin_ + r) : k(), r, student, loss, thread);
  }

 protected:
  // The row with the first `count` of its ids alone.
  RowResult row_of_first(int64_t count, int64_t r, const StudentRow& student, const RowLoss& loss,
                         int thread) const {
    Scratch& own = scratch_.at(thread);
    float* floats = own.floats.data();
    const int64_t row = begin_ + r;
    const TopKTeacherRow teacher{ids_.data_ptr<int32_t>() + row * k(),
                                 chunk_.data_ptr<float>() + r * k(), count,
                                 log_tail_.data_ptr<float>()[row], tolerance_};
    return row_kernels().top_k(student, teacher, loss,
                               {floats, floats + k() + 1, floats + 2 * (k() + 1), own.seen.data(),
                                static_cast<int32_t>(row)});
  }

 private:
  // Returns how many ids stand before the row's padding.
  int64_t named(int64_t row) const {
    const int32_t* ids = ids_.const_data_ptr<int32_t>() + row * k();
    return std::find(ids, ids + k(), -1) - ids;
  }

  struct Scratch {
    std::vector<float> floats;
    std::vector<int32_t> seen;
  };
  double tolerance_ = 0;
  bool padded_ = false;
  int64_t begin_ = 0;
  at::Tensor ids_, logps_, log_tail_, chunk_;
  mutable std::vector<Scratch> scratch_;  // by row thread
};

// Forward KL from the normalised weights of the draws, scaled row by row by what these sum to
// (sampled_weights.h).
class SampledRows : public TopKRows {
 public:
  SampledRows(WeightedIds weighted, int64_t common)
      : TopKRows(weighted.ids, common), weighted_(std::move(weighted)) {}

  RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss,
                int thread) const override {
    const int64_t row = begin() + r;
    const double scale = weighted_.scale.const_data_ptr<double>()[row];
    RowLoss own = loss;
    own.tail = Tail::kRenormalize;
    own.kd_weight = static_cast<float>(loss.kd_weight * scale);
    RowResult result =
        row_of_first(weighted_.distinct.const_data_ptr<int64_t>()[row], r, student, own, thread);
    result.kd = scale * result.kd + weighted_.offset.const_data_ptr<double>()[row];
    result.teacher_mass *= scale;
    return result;
  }

 private:
  WeightedIds weighted_;
};

}  // namespace

std::unique_ptr<TeacherRows> make_teacher_rows(const TeacherSignal& signal, int64_t rows,
                                               int64_t vocab, const DivergenceOptions& options) {
  const int64_t common = common_ids(options, vocab);
  check_divergence(signal, options);
  check_signal(signal, {.rows = rows, .common = common, .own_common = common, .device = at::kCPU});
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal))
    return std::make_unique<TopKRows>(*top_k, common);
  if (const auto* full = std::get_if<TeacherFull>(&signal))
    return std::make_unique<FullRows>(*full, common);
  if (const auto* sampled = std::get_if<TeacherSampled>(&signal))
    return std::make_unique<SampledRows>(weigh(*sampled, common), common);
  const auto& hidden = std::get<TeacherHidden>(signal);
  check_vocabularies(hidden.weight.size(0), vocab, options);
  return std::make_unique<HiddenRows>(hidden, static_cast<float>(1.0 / options.temperature));
}

}  // namespace retort::losses::detail
