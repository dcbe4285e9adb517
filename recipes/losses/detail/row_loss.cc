#include "recipes/losses/detail/row_loss.h"

#include "base/error.h"

namespace retort::losses::detail {
namespace {

// At the ends of their parameter, jsd and the skewed divergences are KLs, which the kernels compute
// without a mixture.
DivergenceType resolved(const DivergenceOptions& options) {
  switch (options.type) {
    case DivergenceType::kJsd:
      if (options.beta == 0) return DivergenceType::kForwardKl;
      return options.beta == 1 ? DivergenceType::kReverseKl : DivergenceType::kJsd;
    case DivergenceType::kSkewedKl:
      return options.skew_lambda == 0 ? DivergenceType::kForwardKl : DivergenceType::kSkewedKl;
    case DivergenceType::kSkewedReverseKl:
      return options.skew_lambda == 0 ? DivergenceType::kReverseKl
                                      : DivergenceType::kSkewedReverseKl;
    case DivergenceType::kForwardKl:
    case DivergenceType::kReverseKl:
    case DivergenceType::kTvd: return options.type;
  }
  __builtin_unreachable();
}

}  // namespace

double kd_factor(const DivergenceOptions& options) {
  return options.scale_by_temperature_squared ? options.temperature * options.temperature : 1.0;
}

RowLoss row_loss(const DivergenceOptions& options) {
  RowLoss loss;
  loss.type = resolved(options);
  loss.tail = options.tail;
  loss.mix =
      static_cast<float>(options.type == DivergenceType::kJsd ? options.beta : options.skew_lambda);
  loss.inv_temperature = static_cast<float>(1.0 / options.temperature);
  loss.ce_weight = static_cast<float>(1.0 - options.kd_ratio);
  loss.kd_weight = static_cast<float>(options.kd_ratio * kd_factor(options) / options.temperature);
  return loss;
}

void refuse_row(RowStatus status, int64_t row) {
  switch (status) {
    case RowStatus::kOk: break;
    case RowStatus::kTeacherNotFinite:
      throw Error(ErrorCode::kCorrupt,
                  "the teacher's row holds NaN or infinity: the teacher diverged, or its payload "
                  "was damaged")
          .with("row", row);
    case RowStatus::kTeacherNotNormal:
      throw Error(ErrorCode::kCorrupt,
                  "the teacher's log-probabilities (with log_tail) do not sum to 1: they are not "
                  "normalised over the common "
                  "vocabulary, or log_tail belongs to something else")
          .with("row", row);
    case RowStatus::kIdOutOfRange:
      throw Error(ErrorCode::kMismatch, "a top-k id lies outside the common vocabulary")
          .with("row", row);
    case RowStatus::kIdRepeated:
      throw Error(ErrorCode::kCorrupt, "a top-k id stands twice in one row").with("row", row);
  }
  throw Error(ErrorCode::kCorrupt, "unknown row status").with("row", row);
}

void refuse_coded(double code) {
  if (code == kNoRowRefused) return;
  const auto whole = static_cast<int64_t>(code);
  refuse_row(static_cast<RowStatus>(whole % kRowStatuses), whole / kRowStatuses);
}

}  // namespace retort::losses::detail
