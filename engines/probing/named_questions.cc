// Ids that are named, against what the engine says of the same ids in its top-k.
#include <ATen/core/Tensor.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <span>

#include "base/error.h"
#include "engines/probing/differences.h"
#include "engines/probing/session.h"

namespace retort::engines {
namespace {

std::span<const float> numbers_of(const at::Tensor& matrix) {
  return {matrix.const_data_ptr<float>(), static_cast<size_t>(matrix.numel())};
}

}  // namespace

// Every row has ids of its own, the least probable first, and one position in the middle is left
// out: numbers of other rows, columns or positions, or that are no log-probabilities, differ.
void ask_named(ProbeSession& session) {
  Contract& contract = session.contract;
  if (session.abilities.max_named_ids == 0) {
    contract.named_why = "its adapter has no way to name them";
    return;
  }
  if (!session.cold || session.top_k == 0) {
    contract.named_why = "it lists no ids that named ones could be compared with";
    return;
  }
  ScoreRequest request = session.text_request();
  const auto left_out = static_cast<std::ptrdiff_t>(request.positions.size() / 2);
  request.positions.erase(request.positions.begin() + left_out);
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < kProbeRows; ++r)
    if (r != left_out) rows.push_back(r);

  const auto of_rows = [&](const at::Tensor& all) {
    return at::flip(at::index_select(all, 0, at::tensor(rows, at::kLong)), {1}).contiguous();
  };
  const at::Tensor ids = of_rows(session.cold->ids), expected = of_rows(session.cold->log_probs);
  try {
    const at::Tensor found =
        session.ask.log_probs_at("log-probabilities at named ids", request, ids);
    contract.named = difference(numbers_of(expected), numbers_of(found));
    contract.named_ids = session.abilities.max_named_ids;
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kMismatch;
    if (!refused) throw;
    // A server that does not take the question is no failure of the probe: only roles that need
    // named ids refuse it, with this reason.
    contract.named_why = error.message();
  }
}

}  // namespace retort::engines
