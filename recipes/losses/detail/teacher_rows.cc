#include "recipes/losses/detail/teacher_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

// How far the log of a payload's total mass may be from 0: rounding of the wire's dtype, with room.
double log_mass_tolerance(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kDouble ? 1e-3 : 0.1; }

void require(bool ok, ErrorCode code, const char* message, const char* key, const at::Tensor& tensor) {
  if (ok) return;
  std::ostringstream shape;
  if (tensor.defined())
    shape << tensor.sizes() << " " << tensor.scalar_type();
  else
    shape << "undefined";
  throw Error(code, message).with(key, shape.str());
}

bool is_float_matrix(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 2 && at::isFloatingType(tensor.scalar_type());
}

void require_cpu(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && !tensor.device().is_cpu())
      throw Error(ErrorCode::kUnavailable, "the linear losses have CPU kernels only: move the teacher's signal to the CPU")
          .with("device", tensor.device().str());
}

// Logits formed from hidden states, into one buffer that every chunk reuses.
class HiddenRows : public TeacherRows {
 public:
  HiddenRows(const TeacherHidden& signal, int64_t rows, float inv_temperature) : inv_temperature_(inv_temperature) {
    require(is_float_matrix(signal.hidden), ErrorCode::kInvalidArgument,
            "the teacher's hidden states must be [R, Ht] of a float dtype", "hidden", signal.hidden);
    require(signal.hidden.size(0) == rows, ErrorCode::kMismatch,
            "the teacher's hidden states and the student's have different row counts", "hidden", signal.hidden);
    require(is_float_matrix(signal.weight) && signal.weight.size(1) == signal.hidden.size(1), ErrorCode::kMismatch,
            "the teacher's head must be [Vt, Ht] with the Ht of its hidden states", "weight", signal.weight);
    require(!signal.bias.defined() || (signal.bias.dim() == 1 && signal.bias.size(0) == signal.weight.size(0)),
            ErrorCode::kMismatch, "the teacher's bias must be [Vt] with the Vt of its head", "bias", signal.bias);
    require_cpu({signal.hidden, signal.weight, signal.bias});
    hidden_ = signal.hidden.detach();
    weight_ = signal.weight.detach().to(at::kFloat);
    if (signal.bias.defined()) bias_ = signal.bias.detach().to(at::kFloat);
  }

  int64_t vocab() const { return weight_.size(0); }
  int64_t floats_per_row() const override { return vocab(); }

  void load(int64_t begin, int64_t count) override {
    if (!buffer_.defined()) buffer_ = at::empty({count, vocab()}, weight_.options());  // the first chunk is the largest
    at::Tensor logits = buffer_.narrow(0, 0, count);
    form_logits(logits, hidden_.narrow(0, begin, count).to(at::kFloat), weight_, bias_);
    data_ = logits.data_ptr<float>();
  }

  RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss, int) const override {
    return row_kernels().dense(student, {data_ + r * vocab(), vocab(), inv_temperature_, -1}, loss);
  }

 private:
  float inv_temperature_;
  at::Tensor hidden_, weight_, bias_, buffer_;
  const float* data_ = nullptr;
};

class FullRows : public TeacherRows {
 public:
  FullRows(const TeacherFull& signal, int64_t rows, int64_t common) : common_(common) {
    require(is_float_matrix(signal.logps), ErrorCode::kInvalidArgument, "full log-probabilities must be [R, V] of a float dtype",
            "logps", signal.logps);
    require(signal.logps.size(0) == rows, ErrorCode::kMismatch,
            "the teacher's log-probabilities and the student's hidden states have "
            "different row counts",
            "logps", signal.logps);
    if (signal.logps.size(1) != common)
      throw Error(ErrorCode::kMismatch, "full log-probabilities must be as wide as the common vocabulary")
          .with("width", signal.logps.size(1))
          .with("common_vocab", common);
    require_cpu({signal.logps});
    logps_ = signal.logps.detach();
    tolerance_ = log_mass_tolerance(logps_.scalar_type());
  }

  int64_t floats_per_row() const override { return logps_.scalar_type() == at::kFloat ? 0 : common_; }

  void load(int64_t begin, int64_t count) override { chunk_ = logps_.narrow(0, begin, count).to(at::kFloat).contiguous(); }

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
  TopKRows(const TeacherTopK& signal, int64_t rows, int64_t common) {
    require(signal.ids.defined() && signal.ids.dim() == 2 && signal.ids.scalar_type() == at::kInt && signal.ids.size(1) > 0,
            ErrorCode::kInvalidArgument, "top-k ids must be [R, K] int32 with K > 0", "ids", signal.ids);
    require(signal.ids.size(0) == rows, ErrorCode::kMismatch,
            "the teacher's top-k and the student's hidden states have different row "
            "counts",
            "ids", signal.ids);
    require(is_float_matrix(signal.logps) && signal.logps.sizes() == signal.ids.sizes(), ErrorCode::kMismatch,
            "top-k log-probabilities must have the shape of the ids and a float dtype", "logps", signal.logps);
    require(signal.log_tail.defined() && signal.log_tail.dim() == 1 && at::isFloatingType(signal.log_tail.scalar_type()) &&
                signal.log_tail.size(0) == rows,
            ErrorCode::kMismatch, "log_tail must be [R] of a float dtype", "log_tail", signal.log_tail);
    if (signal.ids.size(1) > common)
      throw Error(ErrorCode::kMismatch, "more top-k ids than the common vocabulary has")
          .with("k", signal.ids.size(1))
          .with("common_vocab", common);
    require_cpu({signal.ids, signal.logps, signal.log_tail});
    ids_ = signal.ids.contiguous();
    logps_ = signal.logps.detach();
    log_tail_ = signal.log_tail.detach().to(at::kFloat).contiguous();
    tolerance_ = log_mass_tolerance(logps_.scalar_type());
    scratch_.resize(row_threads());
    for (Scratch& scratch : scratch_) {
      scratch.floats.resize(3 * (k() + 1));
      scratch.seen.assign(common, -1);
    }
  }

  int64_t k() const { return ids_.size(1); }
  int64_t floats_per_row() const override { return k(); }

  void load(int64_t begin, int64_t count) override {
    begin_ = begin;
    chunk_ = logps_.narrow(0, begin, count).to(at::kFloat).contiguous();
  }

  RowResult row(int64_t r, const StudentRow& student, const RowLoss& loss, int thread) const override {
    Scratch& own = scratch_.at(thread);
    float* floats = own.floats.data();
    const int64_t row = begin_ + r;
    const TopKTeacherRow teacher{ids_.data_ptr<int32_t>() + row * k(), chunk_.data_ptr<float>() + r * k(), k(),
                                 log_tail_.data_ptr<float>()[row], tolerance_};
    return row_kernels().top_k(student, teacher, loss,
                               {floats, floats + k() + 1, floats + 2 * (k() + 1), own.seen.data(), static_cast<int32_t>(row)});
  }

 private:
  struct Scratch {
    std::vector<float> floats;
    std::vector<int32_t> seen;
  };
  double tolerance_ = 0;
  int64_t begin_ = 0;
  at::Tensor ids_, logps_, log_tail_, chunk_;
  mutable std::vector<Scratch> scratch_;  // by row thread
};

}  // namespace

std::unique_ptr<TeacherRows> make_teacher_rows(const TeacherSignal& signal, int64_t rows, int64_t vocab,
                                               const DivergenceOptions& options) {
  const int64_t common = options.common_vocab > 0 ? options.common_vocab : vocab;
  if (common > vocab)
    throw Error(ErrorCode::kMismatch, "common_vocab exceeds the student's vocabulary")
        .with("common_vocab", common)
        .with("vocab", vocab);
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal)) return std::make_unique<TopKRows>(*top_k, rows, common);
  if (const auto* full = std::get_if<TeacherFull>(&signal)) return std::make_unique<FullRows>(*full, rows, common);
  auto hidden =
      std::make_unique<HiddenRows>(std::get<TeacherHidden>(signal), rows, static_cast<float>(1.0 / options.temperature));
  if (hidden->vocab() < common || (options.common_vocab == 0 && hidden->vocab() != vocab))
    throw Error(ErrorCode::kMismatch,
                "the vocabularies of teacher and student differ: set common_vocab to the ids that both know")
        .with("teacher_vocab", hidden->vocab())
        .with("student_vocab", vocab)
        .with("common_vocab", options.common_vocab);
  return hidden;
}

}  // namespace retort::losses::detail
