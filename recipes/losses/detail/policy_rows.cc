#include "recipes/losses/detail/policy_rows.h"

#include <string>

#include "base/error.h"

namespace retort::losses::detail {
namespace {

// Refuses an input that is missing though it is needed, or given though nothing reads it.
void require_exactly(bool needed, const at::Tensor& tensor, const char* name, int64_t rows,
                     const char* when) {
  if (needed) {
    require_vector(tensor, name, rows);
  } else if (tensor.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " would not be used: it goes with " + when);
  }
}

}  // namespace

PolicyRows::PolicyRows(const PolicyInputs& in, const PolicyOptions& options)
    : sequences(in.num_sequences) {
  check_shapes(in, options);
  policy = FloatVector(in.policy_logps);
  old = FloatVector(in.old_logps.defined() ? in.old_logps : in.policy_logps);
  reference = FloatVector(in.reference_logps);
  generator = FloatVector(in.generator_logps);
  advantages = FloatVector(by_token ? in.token_advantages : in.advantages);
  if (in.surrogate_mask.defined()) {
    const at::Tensor mask = in.surrogate_mask.to(at::kCPU).contiguous();
    surrogate.assign(mask.const_data_ptr<bool>(), mask.const_data_ptr<bool>() + count);
  }
  count_tokens(in.sequence_of_row);
}

void PolicyRows::check_shapes(const PolicyInputs& in, const PolicyOptions& options) {
  if (!in.policy_logps.defined() || in.policy_logps.dim() != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "policy_logps must be [R] float32, one for each sampled token");
  count = in.policy_logps.size(0);
  require_vector(in.policy_logps, "policy_logps", count);
  if (in.old_logps.defined()) require_vector(in.old_logps, "old_logps", count);
  require_exactly(options.beta > 0, in.reference_logps, "reference_logps", count, "beta > 0");
  require_exactly(options.sampling_correction != SamplingCorrection::kNone, in.generator_logps,
                  "generator_logps", count, "a sampling_correction");
  require_vector(in.sequence_of_row, "sequence_of_row", count, at::kLong);
  if (in.surrogate_mask.defined())
    require_vector(in.surrogate_mask, "surrogate_mask", count, at::kBool);

  // Advantages belong to sequences or to tokens, so exactly one of the two is given.
  if (in.num_sequences < 0 || in.advantages.defined() == in.token_advantages.defined())
    throw Error(ErrorCode::kInvalidArgument,
                "give num_sequences and either advantages [S] or token_advantages [R]")
        .with("num_sequences", in.num_sequences);
  by_token = in.token_advantages.defined();
  if (by_token && options.off_policy_mask_threshold)
    throw Error(
        ErrorCode::kInvalidArgument,
        "off_policy_mask_threshold drops sequences by their advantage: give advantages [S]");
  if (by_token)
    require_vector(in.token_advantages, "token_advantages", count);
  else
    require_vector(in.advantages, "advantages", sequences);
}

void PolicyRows::count_tokens(const at::Tensor& sequence_of_row) {
  const at::Tensor flat = sequence_of_row.to(at::kCPU).contiguous();
  sequence.assign(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + count);
  tokens.assign(sequences, 0);
  for (int64_t r = 0; r < count; ++r) {
    if (sequence[r] < 0 || sequence[r] >= sequences)
      throw Error(ErrorCode::kInvalidArgument, "a row belongs to no sequence of this call")
          .with("row", r)
          .with("sequence", sequence[r])
          .with("num_sequences", sequences);
    ++tokens[sequence[r]];
  }
}

}  // namespace retort::losses::detail
