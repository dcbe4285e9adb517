// The forward of generation on the CPU. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/generation/cpu_kernels/products.h"
#include "models/generation/host_layer_weights.h"
#include "models/generation/rank_exchange.h"
#include "models/generation/step_model.h"
#include "models/ops/rope.h"

namespace retort::models {

struct AttendTask;

// Computes in fp32 over fp32 or bf16 weights, with fp32 keys and values. What a row gives depends
// on its own sequence alone, bit for bit, not on how sequences share a step or are cut into steps.
// Collectives: those of StepModel, by RankExchange.
class HostStepModel : public StepModel {
 public:
  // kUnavailable when a weight of the decoder is not on the CPU.
  HostStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);

  void bind(const Decoder& decoder) override;
  static int64_t kv_bytes_of(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);
  int64_t kv_bytes() const override;

  void forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) override;
  at::Tensor final_states() override;
  void logits(const at::Tensor& states, float* out) override;
  void copy_block(int32_t from, int32_t to) override;

 private:
  struct Layer : HostLayerWeights {
    // [num_blocks, kv_heads, padded_dim * block_tokens]
    at::Tensor keys, values;
  };
  // Queries [first, first + count) of a span, with the query heads of one kv head.
  struct Attention {
    int64_t span;
    int64_t head;
    int64_t first;
    int64_t count;
  };

  void embed(const std::vector<int32_t>& ids);
  void plan_attention(const std::vector<StepSpan>& spans);
  void normalise(const at::Tensor& weight, int64_t rows);
  void store(Layer& layer, const StepSpan& span, int64_t row);
  AttendTask attend_task(const Layer& layer, const StepSpan& span, const Attention& task,
                         float* scratch);
  void attend(const Layer& layer, const std::vector<StepSpan>& spans);
  void close_block(const Matrix& matrix, const float* input, int64_t rows,
                   const at::Tensor& output_norm);
  void add_normed(const float* input, const at::Tensor& weight, int64_t rows);
  void products(const float* states, int64_t rows, float* out);
  void run_layer(Layer& layer, const std::vector<StepSpan>& spans, int64_t rows);

  RankExchange ranks_;
  int64_t padded_dim_;
  at::Tensor embedding_, final_norm_;
  Matrix head_;
  std::vector<Layer> layers_;
  // Cosines and sines [positions, half of the rotated dimensions] of one rotary embedding.
  struct Rotations {
    RotaryEmbedding embedding;
    std::vector<float> cos, sin;
    void extend(int64_t length);
  };
  Rotations rotations_;
  std::optional<Rotations> sliding_rotations_;  // of layers with a window, if they have their own
  std::vector<float> x_, h_, q_, k_, v_, mixed_, gate_, up_, closed_;  // rows of the step
  std::vector<int64_t> span_of_row_;
  std::vector<int64_t> last_rows_;  // whose states final_states() gives
  std::vector<Attention> tasks_;
  std::vector<std::vector<float>> scratch_;  // of each thread
  int64_t longest_ = 0;
};

}  // namespace retort::models
