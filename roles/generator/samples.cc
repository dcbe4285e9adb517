#include "roles/generator/samples.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace retort::roles {
namespace {

at::Tensor vector_of(int64_t size, at::ScalarType type) { return at::empty({size}, type); }

bool is_vector(const at::Tensor& tensor, at::ScalarType type, int64_t size) {
  return tensor.defined() && tensor.is_cpu() && tensor.dim() == 1 && tensor.scalar_type() == type &&
         tensor.numel() == size && tensor.is_contiguous();
}

template <class T>
std::span<const T> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

void check_label(const Samples& samples, const ExpectedSamples& expected,
                 const std::string& generator) {
  if (samples.request_id == expected.request_id && samples.generator == generator &&
      samples.weight_version == expected.weight_version &&
      samples.sequence_hash == expected.sequence_hash)
    return;
  throw Error(ErrorCode::kMismatch, "samples belong to something else; they were not used")
      .with("request", samples.request_id)
      .with("expected_request", expected.request_id)
      .with("weight_version", samples.weight_version)
      .with("expected_version", expected.weight_version);
}

[[noreturn]] void corrupt(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "samples: " + what);
}

// Log-probabilities are there for all tokens [T] or for none.
bool is_known_or_none(const at::Tensor& log_probs, int64_t tokens) {
  return is_vector(log_probs, at::kFloat, tokens) || is_vector(log_probs, at::kFloat, 0);
}

// Joins the numbers of all tokens; there are none if the generator does not know them.
at::Tensor join(std::span<const IndexedCompletion> completions,
                std::vector<float> models::Completion::*numbers, int64_t tokens) {
  int64_t known = 0;
  for (const IndexedCompletion& one : completions)
    known += static_cast<int64_t>((one.completion.*numbers).size());
  RETORT_CHECK(known == tokens || known == 0) << "log-probabilities of some tokens alone";

  at::Tensor joined = vector_of(known, at::kFloat);
  auto* to = joined.mutable_data_ptr<float>();
  for (const IndexedCompletion& one : completions) {
    const std::vector<float>& from = one.completion.*numbers;
    to = std::copy(from.begin(), from.end(), to);
  }
  return joined;
}

// Each completion of the request may come at most once.
void check_indices(std::span<const int32_t> indices, int64_t completions) {
  std::vector<bool> seen(static_cast<size_t>(completions));
  for (const int32_t index : indices) {
    if (index < 0 || index >= completions || seen[static_cast<size_t>(index)])
      corrupt("expected different completions of " + std::to_string(completions) +
              ", among them is " + std::to_string(index));
    seen[static_cast<size_t>(index)] = true;
  }
}

}  // namespace

Samples pack_completions(std::span<const IndexedCompletion> completions) {
  const auto count = static_cast<int64_t>(completions.size());
  int64_t tokens = 0;
  for (const IndexedCompletion& one : completions)
    tokens += static_cast<int64_t>(one.completion.token_ids.size());

  Samples samples;
  samples.indices = vector_of(count, at::kInt);
  samples.token_ids = vector_of(tokens, at::kInt);
  samples.cu_seqlens = vector_of(count + 1, at::kInt);
  samples.logps = join(completions, &models::Completion::logps, tokens);
  samples.sampling_logps = join(completions, &models::Completion::sampling_logps, tokens);
  samples.finish_reasons = vector_of(count, at::kByte);

  // The completions lie one after the other; cu_seqlens says where each of them ends.
  auto* index = samples.indices.mutable_data_ptr<int32_t>();
  auto* id = samples.token_ids.mutable_data_ptr<int32_t>();
  auto* end = samples.cu_seqlens.mutable_data_ptr<int32_t>();
  auto* reason = samples.finish_reasons.mutable_data_ptr<uint8_t>();
  int32_t drawn = 0;
  *end++ = 0;
  for (const auto& [place, completion] : completions) {
    *index++ = static_cast<int32_t>(place);
    id = std::copy(completion.token_ids.begin(), completion.token_ids.end(), id);
    *reason++ = static_cast<uint8_t>(completion.finish_reason);
    drawn += static_cast<int32_t>(completion.token_ids.size());
    *end++ = drawn;
  }
  return samples;
}

std::vector<IndexedCompletion> unpack_completions(const Samples& samples) {
  const auto indices = values_of<int32_t>(samples.indices);
  const auto ends = values_of<int32_t>(samples.cu_seqlens);
  const auto reasons = values_of<uint8_t>(samples.finish_reasons);

  // check_samples() has seen that the offsets lie inside the tensors.
  std::vector<IndexedCompletion> completions(indices.size());
  for (size_t i = 0; i < completions.size(); ++i) {
    const auto copy = [&](const auto* from, auto& to) {
      to.assign(from + ends[i], from + ends[i + 1]);
    };
    const auto copy_known = [&](const at::Tensor& from, auto& to) {
      if (from.numel() > 0) copy(from.const_data_ptr<float>(), to);
    };
    completions[i].index = indices[i];
    models::Completion& completion = completions[i].completion;
    copy(samples.token_ids.const_data_ptr<int32_t>(), completion.token_ids);
    copy_known(samples.logps, completion.logps);
    copy_known(samples.sampling_logps, completion.sampling_logps);
    completion.finish_reason = static_cast<models::FinishReason>(reasons[i]);
  }
  return completions;
}

ExpectedSamples expected_samples(const GenerateRequest& request, int64_t vocab_rows) {
  return {.request_id = request.request_id,
          .weight_version = request.weight_version,
          .sequence_hash =
              sequence_hash(request.prompt_ids, request.cu_seqlens, at::empty({0}, at::kInt)),
          .completions = request.sample_ids.numel(),
          .max_new_tokens = request.draw.max_new_tokens,
          .vocab_rows = vocab_rows};
}

void check_samples(const Samples& samples, const ExpectedSamples& expected,
                   const std::string& generator) {
  check_label(samples, expected, generator);

  // Every tensor must have the shape that the others promise.
  const int64_t count = samples.indices.defined() ? samples.indices.numel() : 0;
  if (!is_vector(samples.indices, at::kInt, count) ||
      !is_vector(samples.cu_seqlens, at::kInt, count + 1) ||
      !is_vector(samples.finish_reasons, at::kByte, count))
    corrupt("indices, offsets and finish reasons do not fit together");
  check_indices(values_of<int32_t>(samples.indices), expected.completions);
  const auto ends = values_of<int32_t>(samples.cu_seqlens);
  const int64_t tokens = ends.back();
  if (ends.front() != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
      !is_vector(samples.token_ids, at::kInt, tokens) || !is_known_or_none(samples.logps, tokens) ||
      !is_known_or_none(samples.sampling_logps, tokens))
    corrupt("offsets, ids and log-probabilities do not fit together");

  // The values come from another process, so each must be one that a generator may give.
  for (size_t i = 0; i + 1 < ends.size(); ++i)
    if (ends[i + 1] - ends[i] > expected.max_new_tokens)
      corrupt("a completion is longer than max_new_tokens");
  for (const int32_t id : values_of<int32_t>(samples.token_ids))
    if (id < 0 || id >= expected.vocab_rows) corrupt("an id lies outside the vocabulary");
  for (const at::Tensor* values : {&samples.logps, &samples.sampling_logps})
    for (const float logp : values_of<float>(*values))
      if (!std::isfinite(logp)) corrupt("a log-probability is not finite");
  for (const uint8_t reason : values_of<uint8_t>(samples.finish_reasons))
    if (reason > static_cast<uint8_t>(models::FinishReason::kCancelled))
      corrupt("a finish reason is unknown");
}

}  // namespace retort::roles
