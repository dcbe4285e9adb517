#include "roles/generator/samples.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

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

}  // namespace retort::roles
