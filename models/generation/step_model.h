// The forward of generation: a few new tokens of several sequences against keys and values in
// blocks. Private to models/.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/decoder/merged_weights.h"
#include "models/generation/cpu_kernels/worker_pool.h"
#include "models/generation/sampler.h"

namespace retort::models {

// New tokens of one sequence: rows [first_row, first_row + count), at positions first_position, ...
// `table` names the blocks of the whole sequence, the new tokens' among them.
struct StepSpan {
  int64_t first_row = 0;
  int64_t count = 0;
  int64_t first_position = 0;
  const int32_t* table = nullptr;
  bool last = false;  // its last row is the last token known: final_states() gives its state
};

// Computes where the decoder's weights are: HostStepModel or DeviceStepModel. Of a decoder that is
// split over tp ranks, each rank computes its heads, its part of the MLP and its rows of the
// vocabulary, and keeps the keys and values of its heads.
// Shapes: H hidden_size, V vocab_size. States lie where the model computes: fp32 on the host, in
// the weights' dtype on a device. Logits are fp32.
// Use, in each step: forward, final_states, then logits or draw of these states or of earlier ones.
// Collectives: on the decoder's tp group; all ranks get the same states and logits. In forward two
// exchanges of [rows, H] a layer and one for the embedding, in logits one of [rows, V / tp], in
// draw one for each chunk of rows.
// Threads: one at a time; it uses the threads of pool().
class StepModel {
 public:
  // The decoder, without pipeline stages, must outlive it.
  static std::unique_ptr<StepModel> make(const Decoder& decoder, int64_t num_blocks,
                                         int64_t block_tokens);
  virtual ~StepModel() = default;

  // Takes the decoder's tensors again, after they were replaced or written to: those that are not
  // read in place are copied anew. An adapter is added to what it adapts, which takes the memory of
  // those matrices once more, and no time in a step.
  virtual void bind(const Decoder& decoder) = 0;
  // Bytes of the keys and values of this rank's kv_heads:
  //   on the host   2 * layers * num_blocks * block_tokens * kv_heads
  //                   * (head_dim rounded up to 16) * 4
  //   on a device   2 * layers * num_blocks * block_tokens * kv_heads * head_dim
  //                   * the size of the weights' dtype
  static int64_t kv_bytes(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens);
  virtual int64_t kv_bytes() const = 0;

  // Runs the layers and stores keys and values. The states stay until the next forward.
  virtual void forward(const std::vector<int32_t>& ids, const std::vector<StepSpan>& spans) = 0;
  // The states after the final norm of the spans that are `last`, in their order: [such spans, H].
  // They are the caller's, and stay as they are.
  virtual at::Tensor final_states() = 0;
  // [rows, H] -> [rows, V] on the host.
  virtual void logits(const at::Tensor& states, float* out) = 0;
  // Draws a token from the logits of row `row` of the states for each, in ascending order of rows,
  // without bringing the logits to the host: the token of choose_token for the same logits, or -1
  // where they are not finite. Only where has_draw().
  virtual bool has_draw() const { return false; }
  virtual void draw(const at::Tensor& states, std::span<const RowDraw> draws, Choice* out);
  virtual void copy_block(int32_t from, int32_t to) = 0;

  const ModelConfig& config() const { return config_; }
  // The pool has at::get_num_threads() threads, as many as there were at construction.
  WorkerPool& pool() { return pool_; }

 protected:
  StepModel(const Decoder& decoder, int64_t block_tokens);

  WorkerPool pool_;
  ModelConfig config_;
  int64_t heads_, kv_heads_;  // of this rank
  int64_t block_tokens_;
};

// What a step computes with, by Hugging Face name: a decoder's tensors as they are, or new ones
// with its adapter added. Undefined for a name that it has no tensor of. The decoder outlives it.
class StepWeights {
 public:
  explicit StepWeights(const Decoder& decoder)
      : parameters_(decoder.parameters()), merged_(decoder) {}
  at::Tensor find(const std::string& name) const;

 private:
  std::vector<parallel::NamedParameter> parameters_;
  MergedWeights merged_;
};

// Key and value heads of this rank.
int64_t step_kv_heads(const Decoder& decoder);

}  // namespace retort::models
