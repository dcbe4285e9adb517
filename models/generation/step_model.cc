#include "models/generation/step_model.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/error.h"
#include "models/generation/device_step_model.h"
#include "models/generation/host_step_model.h"

namespace retort::models {

at::Tensor StepWeights::find(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &parallel::NamedParameter::name);
  return found == parameters_.end() ? at::Tensor() : merged_.of(*found);
}

int64_t step_kv_heads(const Decoder& decoder) {
  return std::max<int64_t>(1, decoder.config().num_key_value_heads / decoder.placement().tp_size());
}

StepModel::StepModel(const Decoder& decoder, int64_t block_tokens)
    : pool_(at::get_num_threads()),
      config_(decoder.config()),
      heads_(config_.num_attention_heads / decoder.placement().tp_size()),
      kv_heads_(step_kv_heads(decoder)),
      block_tokens_(block_tokens) {}

std::unique_ptr<StepModel> StepModel::make(const Decoder& decoder, int64_t num_blocks,
                                           int64_t block_tokens) {
  RETORT_CHECK(decoder.placement().pp == 1) << "generation with a stage of a pipeline";
  if (decoder.device().is_cpu())
    return std::make_unique<HostStepModel>(decoder, num_blocks, block_tokens);
  return std::make_unique<DeviceStepModel>(decoder, num_blocks, block_tokens,
                                           DeviceStepModel::Limits{});
}

void StepModel::draw(const at::Tensor&, std::span<const RowDraw>, Choice*) {
  RETORT_CHECK(false) << "a model that leaves drawing to the sampler of the host";
}

int64_t StepModel::kv_bytes(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens) {
  return decoder.device().is_cpu()
             ? HostStepModel::kv_bytes_of(decoder, num_blocks, block_tokens)
             : DeviceStepModel::kv_bytes_of(decoder, num_blocks, block_tokens);
}

}  // namespace retort::models
