#include "recipes/losses/linear_distill.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/teacher_rows.h"

namespace retort::losses {
namespace {

detail::Divergence resolved(const DivergenceOptions& options) {
  switch (options.type) {
    case DivergenceType::kForwardKl: return detail::Divergence::kForwardKl;
    case DivergenceType::kReverseKl: return detail::Divergence::kReverseKl;
    case DivergenceType::kJsd:
      if (options.beta == 0) return detail::Divergence::kForwardKl;
      return options.beta == 1 ? detail::Divergence::kReverseKl : detail::Divergence::kJsd;
    case DivergenceType::kSkewedKl:  // lambda 0 is its own limit
      return options.skew_lambda == 0 ? detail::Divergence::kForwardKl : detail::Divergence::kSkewedKl;
    case DivergenceType::kSkewedReverseKl:
      return options.skew_lambda == 0 ? detail::Divergence::kReverseKl : detail::Divergence::kSkewedReverseKl;
    case DivergenceType::kTvd: return detail::Divergence::kTvd;
  }
  __builtin_unreachable();
}

detail::TopKTail resolved(Tail tail) {
  switch (tail) {
    case Tail::kBucket: return detail::TopKTail::kBucket;
    case Tail::kRenormalize: return detail::TopKTail::kRenormalize;
    case Tail::kDrop: return detail::TopKTail::kDrop;
  }
  __builtin_unreachable();
}

double kd_factor(const DivergenceOptions& options) {
  return options.scale_by_temperature_squared ? options.temperature * options.temperature : 1.0;
}

detail::RowLoss row_loss(const DivergenceOptions& options) {
  detail::RowLoss loss;
  loss.type = resolved(options);
  loss.tail = resolved(options.tail);
  loss.mix = static_cast<float>(options.type == DivergenceType::kJsd ? options.beta : options.skew_lambda);
  loss.inv_temperature = static_cast<float>(1.0 / options.temperature);
  loss.ce_weight = static_cast<float>(1.0 - options.kd_ratio);
  loss.kd_weight = static_cast<float>(options.kd_ratio * kd_factor(options) / options.temperature);
  return loss;
}

[[noreturn]] void refuse(detail::RowStatus status, int64_t row) {
  switch (status) {
    case detail::RowStatus::kOk: break;
    case detail::RowStatus::kTeacherNotFinite:
      throw Error(ErrorCode::kCorrupt,
                  "the teacher's row holds NaN or infinity: the teacher diverged, or its payload was damaged")
          .with("row", row);
    case detail::RowStatus::kTeacherNotNormal:
      throw Error(ErrorCode::kCorrupt,
                  "the teacher's log-probabilities (with log_tail) do not sum to 1: they are not normalised over the common "
                  "vocabulary, or log_tail belongs to something else")
          .with("row", row);
    case detail::RowStatus::kIdOutOfRange:
      throw Error(ErrorCode::kMismatch, "a top-k id lies outside the common vocabulary").with("row", row);
    case detail::RowStatus::kIdRepeated: throw Error(ErrorCode::kCorrupt, "a top-k id stands twice in one row").with("row", row);
  }
  throw Error(ErrorCode::kCorrupt, "unknown row status").with("row", row);
}

class DistillChunks : public detail::ChunkLoss {
 public:
  DistillChunks(const at::Tensor& targets, int64_t vocab, detail::TeacherRows& teacher, const DivergenceOptions& options)
      : targets_(targets.contiguous()),
        vocab_(vocab),
        common_(options.common_vocab > 0 ? options.common_vocab : vocab),
        teacher_(teacher),
        kd_ratio_(options.kd_ratio),
        kd_factor_(kd_factor(options)),
        loss_(row_loss(options)) {}

  void chunk(int64_t begin, int64_t count, at::Tensor chunk, bool gradient) override {
    float* logits = chunk.data_ptr<float>();
    const int64_t* targets = targets_.data_ptr<int64_t>() + begin;
    loss_.gradient = gradient;
    teacher_.load(begin, count);
    rows_.resize(count);
    detail::for_rows(count, [&](int64_t first, int64_t last, int thread) {
      for (int64_t r = first; r < last; ++r)
        rows_[r] = teacher_.row(r, {logits + r * vocab_, vocab_, common_, targets[r]}, loss_, thread);
    });
    for (int64_t r = 0; r < count; ++r) {
      if (rows_[r].status != detail::RowStatus::kOk) refuse(rows_[r].status, begin + r);
      add(rows_[r]);
    }
  }

  double loss_sum() const override {
    double sum = kd_ratio_ * sums_.kd_sum;
    if (kd_ratio_ < 1) sum += (1 - kd_ratio_) * sums_.ce_sum;  // an infinite CE that is not asked for must not make NaN
    return sum;
  }
  const DistillResult& sums() const { return sums_; }

 private:
  void add(const detail::RowResult& row) {
    sums_.kd_sum += kd_factor_ * row.kd;
    sums_.ce_sum -= row.log_prob;
    sums_.teacher_mass_sum += row.teacher_mass;
    sums_.student_mass_sum += row.student_mass;
    sums_.masked_mass_sum += row.masked_mass;
    sums_.entropy_sum += row.entropy;
    sums_.num_correct += row.correct;
    ++sums_.count;
  }

  at::Tensor targets_;
  int64_t vocab_, common_;
  detail::TeacherRows& teacher_;
  double kd_ratio_, kd_factor_;
  detail::RowLoss loss_;
  std::vector<detail::RowResult> rows_;
  DistillResult sums_;  // loss_sum stays undefined here
};

}  // namespace

DistillResult linear_distill(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& targets, const TeacherSignal& signal, const DivergenceOptions& options) {
  const detail::LinearHead head{hidden, weight, bias};
  options.validate();
  detail::check_head(head, targets, head.vocab());
  const auto teacher = detail::make_teacher_rows(signal, head.rows(), head.vocab(), options);
  DistillChunks chunks(targets, head.vocab(), *teacher, options);
  const int64_t rows_at_once = detail::chunk_rows(options.chunk_tokens, head.vocab() + teacher->floats_per_row());
  const at::Tensor loss_sum = detail::run_linear_head(head, rows_at_once, chunks);
  DistillResult result = chunks.sums();
  result.loss_sum = loss_sum;
  return result;
}

}  // namespace retort::losses
