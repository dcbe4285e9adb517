#include "engines/vllm/named_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/wire/log_prob.h"
#include "engines/wire/npy.h"

namespace retort::engines::vllm {
namespace {

constexpr const char* kMatrixField = "prompt_token_id_logprobs";

}  // namespace

NamedRows::NamedRows(const ScoreRequest& request, int64_t width)
    : positions_(request.positions), width_(width), reader_(*this) {}

// Only a field of the answer itself counts; a choice may have one of the same name.
bool NamedRows::in_matrix() const { return depth_ == 1 && key_ == kMatrixField; }

void NamedRows::enter(const std::string& kind) {
  if (depth_ == 0 && kind != "an object")
    throw Error(ErrorCode::kCorrupt, "the answer: is " + kind + " instead of an object");
  refuse_kind(kind);
  ++depth_;
}

void NamedRows::string(std::string_view) {
  if (in_matrix() && std::exchange(has_matrix_, true))
    throw Error(ErrorCode::kCorrupt, std::string(kMatrixField) + ": stands there twice");
}

void NamedRows::string_piece(std::string_view text) {
  if (in_matrix()) matrix_.add(text);
}

void NamedRows::number(double value) { refuse_kind("the number " + json_number(value)); }

void NamedRows::refuse_kind(const std::string& kind) const {
  if (in_matrix())
    throw Error(ErrorCode::kCorrupt,
                std::string(kMatrixField) + ": holds " + kind + " instead of base64");
}

at::Tensor NamedRows::take() {
  reader_.end();
  if (!has_matrix_)
    throw Error(ErrorCode::kMismatch,
                std::string(kMatrixField) +
                    ": is missing; vLLM 0.32 or later gives it, with VLLM_USE_V2_MODEL_RUNNER=1 "
                    "and without --kv-sharing-fast-prefill");
  const at::Tensor all = read_npy_matrix(matrix_.take());

  // The matrix has a row for each position from the first wanted one to the last; those between
  // that nobody wants are dropped.
  const int64_t rows = int64_t{positions_.back()} - positions_.front() + 1;
  if (all.size(0) != rows || all.size(1) != width_)
    throw Error(ErrorCode::kCorrupt,
                std::string(kMatrixField) + ": is [" + std::to_string(all.size(0)) + ", " +
                    std::to_string(all.size(1)) + "], and [" + std::to_string(rows) + ", " +
                    std::to_string(width_) + "] was asked for");
  const at::Tensor wanted = at::index_select(
      all, 0, at::tensor(positions_, at::kInt).to(at::kLong) - int64_t{positions_.front()});
  check(wanted);
  return wanted;
}

void NamedRows::check(const at::Tensor& wanted) const {
  const auto* value = wanted.const_data_ptr<float>();
  for (const int32_t position : positions_)
    for (int64_t column = 0; column < width_; ++column, ++value) {
      // A log-probability as it should be needs no name for an error, and there are many of them.
      if (*value <= 0 && *value > kClampedLogProb) continue;
      std::ostringstream name;
      name << kMatrixField << " of position " << position << ", column " << column;
      checked_log_prob(*value, name.str());
    }
}

}  // namespace retort::engines::vllm
