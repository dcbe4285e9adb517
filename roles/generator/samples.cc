#include "roles/generator/samples.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "base/error.h"

namespace retort::roles {
namespace {

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

Samples pack_completions(const std::vector<models::Completion>& completions) {
  std::vector<int32_t> ids;
  std::vector<int32_t> ends{0};
  std::vector<float> logps;
  std::vector<float> sampling_logps;
  at::Tensor reasons = at::empty({static_cast<int64_t>(completions.size())}, at::kByte);
  for (size_t i = 0; i < completions.size(); ++i) {
    append(ids, completions[i].token_ids);
    append(logps, completions[i].logps);
    append(sampling_logps, completions[i].sampling_logps);
    ends.push_back(static_cast<int32_t>(ids.size()));
    reasons.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(completions[i].finish_reason);
  }

  Samples samples;
  samples.token_ids = at::tensor(ids, at::kInt);
  samples.cu_seqlens = at::tensor(ends, at::kInt);
  samples.logps = at::tensor(logps, at::kFloat);
  samples.sampling_logps = at::tensor(sampling_logps, at::kFloat);
  samples.finish_reasons = reasons;
  return samples;
}

void check_samples(const Samples& samples, const GenerateRequest& request,
                   const std::string& generator, int64_t vocab_rows) {
  // The answer is to this request.
  const std::string hash =
      sequence_hash(request.prompt_ids, request.cu_seqlens, at::empty({0}, at::kInt));
  if (samples.request_id != request.request_id || samples.generator != generator ||
      samples.weight_version != request.weight_version || samples.sequence_hash != hash)
    throw Error(ErrorCode::kMismatch, "samples belong to something else; they were not used")
        .with("request", samples.request_id)
        .with("expected_request", request.request_id)
        .with("weight_version", samples.weight_version)
        .with("expected_version", request.weight_version);

  // Every tensor has the shape that the request and the offsets promise.
  const auto corrupt = [](const std::string& what) {
    throw Error(ErrorCode::kCorrupt, "samples: " + what);
  };
  const int64_t completions = request.sample_ids.numel();
  const auto is = [](const at::Tensor& t, at::ScalarType type, int64_t size) {
    return t.defined() && t.dim() == 1 && t.scalar_type() == type && t.numel() == size;
  };
  if (!is(samples.cu_seqlens, at::kInt, completions + 1) ||
      !is(samples.finish_reasons, at::kByte, completions))
    corrupt("expected " + std::to_string(completions) + " completions");
  const at::Tensor lengths = samples.cu_seqlens.diff();
  const int64_t tokens = samples.cu_seqlens.select(0, completions).item<int64_t>();
  if (samples.cu_seqlens.select(0, 0).item<int64_t>() != 0 ||
      (completions > 0 && lengths.min().item<int64_t>() < 0) ||
      !is(samples.token_ids, at::kInt, tokens) || !is(samples.logps, at::kFloat, tokens) ||
      !is(samples.sampling_logps, at::kFloat, tokens))
    corrupt("offsets, ids and log-probabilities do not fit together");

  // What the values may be.
  if (completions > 0 && lengths.max().item<int64_t>() > request.draw.max_new_tokens)
    corrupt("a completion is longer than max_new_tokens");
  if (tokens > 0 && (samples.token_ids.min().item<int64_t>() < 0 ||
                     samples.token_ids.max().item<int64_t>() >= vocab_rows))
    corrupt("an id lies outside the vocabulary");
  if (tokens > 0 && !samples.logps.isfinite().all().item<bool>())
    corrupt("a log-probability is not finite");
}

}  // namespace retort::roles
