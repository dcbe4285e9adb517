#include "engines/probing/answer_checks.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "base/error.h"

namespace retort::engines {
namespace {

constexpr double kAboveZero = 1e-5;  // rounding of a probability of 1
constexpr double kMassAbove = 1e-3;  // and of a sum of many

[[noreturn]] void corrupt(const std::string& field, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "the engine's answer: " + field + " " + what);
}

void check_log_prob(const std::string& field, size_t index, float value) {
  if (std::isnan(value)) corrupt(field + "[" + std::to_string(index) + "]", "is not a number");
  if (value > kAboveZero)
    corrupt(field + "[" + std::to_string(index) + "]", "is above 0: " + std::to_string(value));
}

void check_id(const std::string& field, int32_t id, int64_t ids) {
  if (id < 0 || id >= ids)
    corrupt(field,
            "has id " + std::to_string(id) + " outside the vocabulary of " + std::to_string(ids));
}

bool is_end(const DrawRequest& request, int32_t id) {
  const auto& ends = request.how.eos_token_ids;
  return std::find(ends.begin(), ends.end(), int64_t{id}) != ends.end();
}

// Checks one row of a top-k.
void check_row(const int32_t* ids, const float* values, int64_t k, int64_t limit, size_t row) {
  std::unordered_set<int32_t> seen;
  double mass = 0;
  for (int64_t i = 0; i < k; ++i) {
    check_id("ids", ids[i], limit);
    check_log_prob("log_probs", row, values[i]);
    if (!seen.insert(ids[i]).second) corrupt("ids", "has an id twice in one row");
    if (i > 0 && values[i] > values[i - 1] + kAboveZero) corrupt("log_probs", "does not fall");
    mass += std::exp(static_cast<double>(values[i]));
  }
  if (mass > 1 + kMassAbove)
    corrupt("log_probs", "has probabilities that sum to " + std::to_string(mass));
}

}  // namespace

void check_answer(const DrawRequest& request, const Drawn& answer, int64_t ids) {
  const auto count = static_cast<int64_t>(answer.token_ids.size());
  const int64_t most = request.how.max_new_tokens;
  if (count < 1 || count > most)
    corrupt("token_ids",
            "has " + std::to_string(count) + " tokens, expected 1 to " + std::to_string(most));
  for (const int32_t id : answer.token_ids)
    check_id("token_ids", id, ids);
  if (!answer.log_probs.empty() && answer.log_probs.size() != answer.token_ids.size())
    corrupt("log_probs", "has " + std::to_string(answer.log_probs.size()) + " numbers for " +
                             std::to_string(count) + " tokens");
  for (size_t i = 0; i < answer.log_probs.size(); ++i) {
    check_log_prob("log_probs", i, answer.log_probs[i]);
    if (std::isinf(answer.log_probs[i])) corrupt("log_probs", "is -inf for a token it drew");
  }

  // A reason to end must show in the tokens, or the engine reports something else than it drew.
  const bool ended = is_end(request, answer.token_ids.back());
  if (answer.finish_reason == models::FinishReason::kEos && !ended)
    corrupt("finish_reason", "is eos, and the last token is no end token");
  if (answer.finish_reason == models::FinishReason::kLength && count < most)
    corrupt("finish_reason",
            "is length after " + std::to_string(count) + " of " + std::to_string(most) + " tokens");
}

void check_answer(const ScoreRequest& request, const Scored& answer, int64_t ids) {
  const auto rows = static_cast<int64_t>(request.positions.size());
  if (static_cast<int64_t>(answer.given.size()) != rows)
    corrupt("given", "has " + std::to_string(answer.given.size()) + " numbers for " +
                         std::to_string(rows) + " positions");
  for (size_t r = 0; r < answer.given.size(); ++r)
    check_log_prob("given", r, answer.given[r]);
  if (request.top_k == 0) return;

  // The tensors are read by pointer below, so their form is checked first.
  const auto fits = [&](const at::Tensor& tensor, at::ScalarType dtype) {
    return tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == dtype &&
           tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == request.top_k;
  };
  const std::string shape =
      "is not [" + std::to_string(rows) + ", " + std::to_string(request.top_k) + "]";
  if (!fits(answer.ids, at::kInt)) corrupt("ids", shape + " int32");
  if (!fits(answer.log_probs, at::kFloat)) corrupt("log_probs", shape + " float32");

  const at::Tensor found = answer.ids.contiguous();
  const at::Tensor values = answer.log_probs.contiguous();
  for (int64_t r = 0; r < rows; ++r)
    check_row(found.const_data_ptr<int32_t>() + r * request.top_k,
              values.const_data_ptr<float>() + r * request.top_k, request.top_k, ids,
              static_cast<size_t>(r));
}

}  // namespace retort::engines
