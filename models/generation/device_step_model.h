// The forward of generation where the weights are on a device, by LibTorch's operators and, where
// the device has them, by the kernels of kernels/. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/decoder/layers.h"
#include "models/generation/step_model.h"
#include "models/generation/step_plan.h"
#include "models/ops/rope.h"

namespace retort::models {

// Computes in the dtype of the weights, with keys and values of that dtype; logits are products in
// that dtype with fp32 sums and results. Bits may depend on what shares a step, as those of
// LibTorch's products do.
// Attention: spans that begin with their sequence attend all together to their own new keys, as
//   training does (models/ops/attention.h). Where the device has kernels, spans of one row read
//   their keys in their blocks (paged_decode.h), and draw() is there. Elsewhere, and for longer
//   spans behind what is cached, keys and values are gathered in each layer, those of spans of one
//   row padded to the longest.
// Memory: kv_bytes(); in a step [rows, H] and the like, what is gathered, once a layer, and the
//   logits: in draw() at most 256 MiB at a time, or one row.
// Copies: to the device one of numbers in forward and one of 32 bytes a draw in draw(), from pinned
//   memory, for which the host does not wait; to the host the logits, or 16 bytes a draw.
// Collectives: those of StepModel, all-gathers of tensors on the device.
class DeviceStepModel : public StepModel {
 public:
  // What is computed at once at most. Tests have smaller ones.
  struct Limits {
    int64_t logits = int64_t{1} << 26;  // fp32 values, in draw()
    int64_t decoded = 65535;            // sequences, in paged_decode
  };

  DeviceStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens,
                  const Limits& limits);

  void bind(const Decoder& decoder) override;
  static int64_t kv_bytes_of(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);
  int64_t kv_bytes() const override;

  void forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) override;
  at::Tensor final_states() override;
  void logits(const at::Tensor& states, float* out) override;
  bool has_draw() const override;
  void draw(const at::Tensor& states, std::span<const RowDraw> draws, Choice* out) override;
  void copy_block(int32_t from, int32_t to) override;

 private:
  struct Layer {
    LayerWeights weights;
    at::Tensor keys, values;  // [num_blocks * block_tokens, kv_heads, head_dim]
    int64_t window = 0;
  };

  at::Tensor logits_of(const at::Tensor& states) const;  // of all ranks
  at::Tensor looked_up(const at::Tensor& ids) const;
  at::Tensor attend(Layer& layer, const at::Tensor& h);
  at::Tensor attend_packed(const Layer& layer, StepPart& part, const at::Tensor& q,
                           const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor attend_gathered(const Layer& layer, StepPart& part, const at::Tensor& q) const;
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
  int64_t max_logits_;       // values that draw() forms at once
  int64_t max_decoded_ = 0;  // sequences that paged_decode takes at once; 0: it has no kernel
  // The current step alone uses these:
  RopeTable rope_, sliding_rope_;
  at::Tensor slots_;      // where the new keys and values go: [rows]
  at::Tensor last_rows_;  // whose states are asked for; undefined: all
  std::vector<StepPart> parts_;
  at::Tensor x_;  // the residual stream after the last layer: [rows, H]
};

}  // namespace retort::models
