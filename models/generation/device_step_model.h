// The forward of generation where the weights are on a device, by LibTorch's operators. Private to
// models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "models/decoder/layers.h"
#include "models/generation/step_model.h"
#include "models/ops/rope.h"

namespace retort::models {

// Computes in the dtype of the weights, with keys and values of that dtype; logits are fp32
// products of fp32 states, with the head cast piece by piece. Bits may depend on what shares a
// step, as those of LibTorch's products do.
// Memory: kv_bytes(); in a step [rows, H] and the like, the keys and values of the longest sequence
//   for each sequence that draws, once a layer, and in logits a piece of the head in fp32.
// Copies: to the device one of numbers in forward and one of states in logits; to the host the
//   states of the rows that are asked for, and the logits.
// Collectives: those of StepModel, all-gathers of tensors on the device.
class DeviceStepModel : public StepModel {
 public:
  DeviceStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);

  void bind(const Decoder& decoder) override;
  static int64_t kv_bytes_of(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);
  int64_t kv_bytes() const override;

  void forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) override;
  void final_states(std::span<const int64_t> rows, float* out) override;
  void logits(const float* states, int64_t rows, float* out) override;
  void copy_block(int32_t from, int32_t to) override;

 private:
  struct Layer {
    LayerWeights weights;
    at::Tensor keys, values;  // [num_blocks * block_tokens, kv_heads, head_dim]
    int64_t window = 0;
  };
  // B sequences with C queries each, against L keys; a shorter sequence repeats its first key,
  // which is masked.
  struct Part {
    int64_t sequences = 0, queries = 0, keys = 0;
    at::Tensor rows;                           // [B * C] of the step
    at::Tensor slots;                          // [B * L] of keys and values
    at::Tensor positions;                      // [B, C]
    std::map<int64_t, at::Tensor> masks = {};  // by window: [B, 1, C, L], true where seen
  };
  class Plan;

  at::Tensor looked_up(const at::Tensor& ids) const;
  at::Tensor attend(Layer& layer, const at::Tensor& h);
  at::Tensor attend_part(const Layer& layer, Part& part, const at::Tensor& q) const;
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor run_layer(Layer& layer, const at::Tensor& x);
  // Sums the ranks' parts of the last product of a block.
  at::Tensor sum_over_ranks(const at::Tensor& part) const;

  Placement placement_;
  at::Device device_;
  at::Tensor embedding_, final_norm_, head_;
  RotaryEmbedding rotary_;
  // Layers with a window have a rotary embedding of their own in some families.
  std::optional<RotaryEmbedding> sliding_rotary_;
  std::vector<Layer> layers_;
  // The current step alone uses these:
  RopeTable rope_, sliding_rope_;
  at::Tensor slots_;  // where the new keys and values go: [rows]
  std::vector<Part> parts_;
  at::Tensor x_;  // the residual stream after the last layer: [rows, H]
};

}  // namespace retort::models
