// The forward of generation: a few new tokens of several sequences against keys and values in
// blocks. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/decoder.h"
#include "models/generation/products.h"
#include "models/generation/rank_exchange.h"
#include "models/generation/worker_pool.h"

namespace retort::models {

struct AttendTask;

// New tokens of one sequence: rows [first_row, first_row + count), at positions first_position, ...
// `table` names the blocks of the whole sequence, the new tokens' among them.
struct StepSpan {
  int64_t first_row = 0;
  int64_t count = 0;
  int64_t first_position = 0;
  const int32_t* table = nullptr;
};

// Computes in fp32 over fp32 or bf16 weights, with fp32 keys and values. What a row gives depends
// on its own sequence alone, bit for bit, not on how sequences share a step or are cut into steps.
// Of a decoder that is split over tp ranks, each rank computes its heads, its part of the MLP and
// its rows of the vocabulary, and keeps the keys and values of its heads.
// Shapes: H hidden_size, V vocab_size.
// Collectives: on the decoder's tp group; all ranks get the same states and logits. In forward two
// exchanges of [rows, H] a layer and one for the embedding, in logits one of [rows, V / tp]
// (RankExchange).
// Threads: one at a time; it uses the threads of pool().
class StepModel {
 public:
  // The decoder, without pipeline stages, must outlive this. kUnavailable when its weights are not
  // on the CPU.
  StepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);

  // Takes the decoder's tensors again, after they were replaced or written to: those that are not
  // read in place are copied anew.
  void bind(const Decoder& decoder);
  // 2 * layers * num_blocks * block_tokens * kv_heads * (head_dim rounded up to 16) * 4 bytes,
  // kv_heads being this rank's.
  static int64_t kv_bytes(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);
  int64_t kv_bytes() const;

  // Runs the layers and stores keys and values. The states stay until the next forward.
  void forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans);
  void final_state(int64_t row, float* out) const;             // [H], after the final norm
  void logits(const float* states, int64_t rows, float* out);  // [rows, H] -> [rows, V]
  void copy_block(int32_t from, int32_t to);

  const ModelConfig& config() const { return config_; }
  // With at::get_num_threads() threads, as it was at construction.
  WorkerPool& pool() { return pool_; }

 private:
  struct Layer {
    Matrix q, k, v, o, gate, up, down;
    at::Tensor input_norm, post_norm, q_norm, k_norm;  // fp32
    // [num_blocks, kv_heads, padded_dim * block_tokens]
    at::Tensor keys, values;
    int64_t window = 0;
  };
  // Queries [first, first + count) of a span, with the query heads of one kv head.
  struct Attention {
    int64_t span;
    int64_t head;
    int64_t first;
    int64_t count;
  };

  void bind_layer(size_t index, const std::vector<parallel::NamedParameter>& parameters);
  void embed(const std::vector<int32_t>& ids);
  void extend_rope(int64_t length);
  void plan_attention(const std::vector<StepSpan>& spans);
  void normalise(const at::Tensor& weight, int64_t rows);
  void store(Layer& layer, const StepSpan& span, int64_t row);
  AttendTask attend_task(const Layer& layer, const StepSpan& span, const Attention& task,
                         float* scratch);
  void attend(const Layer& layer, const std::vector<StepSpan>& spans);
  void close_block(const Matrix& matrix, const float* input, int64_t rows);
  void run_layer(Layer& layer, const std::vector<StepSpan>& spans, int64_t rows);

  WorkerPool pool_;
  RankExchange ranks_;
  ModelConfig config_;
  int64_t heads_, kv_heads_;  // of this rank
  int64_t num_blocks_, block_tokens_, padded_dim_;
  at::Tensor embedding_, final_norm_, inverse_frequencies_;
  Matrix head_;
  std::vector<Layer> layers_;
  std::vector<float> cos_, sin_;                              // [positions, head_dim / 2]
  std::vector<float> x_, h_, q_, k_, v_, mixed_, gate_, up_;  // rows of the step
  std::vector<int64_t> span_of_row_;
  std::vector<Attention> tasks_;
  std::vector<std::vector<float>> scratch_;  // of each thread
  int64_t longest_ = 0;
};

}  // namespace retort::models
