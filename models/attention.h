// Causal attention over packed sequences, with rotary embedding, grouped heads and sliding windows.
// Private to models/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "models/packed.h"
#include "models/rope.h"

namespace retort::models {

struct HeadShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t group() const { return heads / kv_heads; }
};

// A run of queries of one sequence and the keys that any of them sees. Offsets count from the
// sequence's first token.
struct AttentionBlock {
  int64_t query_begin = 0;
  int64_t num_queries = 0;
  int64_t key_begin = 0;
  int64_t num_keys = 0;
  bool causal = false;  // square and causal, no mask needed
  // [num_queries, num_keys] of the queries' dtype, 0 or -inf; undefined: every query sees every key
  at::Tensor mask;
};

// The blocks of each sequence for one window size; made once for each forward and shared by the
// layers. A sequence longer than the window is cut into blocks, so that memory and time grow with
// length * window.
class AttentionPlan : public torch::CustomClassHolder {
 public:
  // window 0: full attention. `forks`: one for each sequence, or none.
  AttentionPlan(HeadShape shape, const std::vector<int64_t>& cu_seqlens,
                const std::vector<Fork>& forks, int64_t window, const at::TensorOptions& options);

  const HeadShape& shape() const { return shape_; }
  int64_t num_sequences() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t num_tokens() const { return cu_seqlens_.back(); }
  int64_t begin(int64_t s) const { return cu_seqlens_[static_cast<size_t>(s)]; }
  int64_t length(int64_t s) const { return cu_seqlens_[static_cast<size_t>(s) + 1] - begin(s); }
  int64_t window() const { return window_; }
  const std::vector<int64_t>& cu_seqlens() const { return cu_seqlens_; }
  int64_t max_length() const;
  bool has_forks() const { return has_forks_; }
  // cu_seqlens() as int32 on a device, made once. The compute thread only.
  const at::Tensor& cu_seqlens_on(const at::Device& device);
  const std::vector<AttentionBlock>& blocks(int64_t s) const {
    return blocks_[static_cast<size_t>(s)];
  }

 private:
  void add_blocks(int64_t length, const at::TensorOptions& options);
  void add_fork(const Fork& fork, int64_t length, const at::TensorOptions& options);
  at::Tensor mask(int64_t num_queries, int64_t num_keys, int64_t offset,
                  const at::TensorOptions& options);

  HeadShape shape_;
  std::vector<int64_t> cu_seqlens_;
  int64_t window_;
  bool has_forks_ = false;
  at::Tensor device_cu_seqlens_;
  std::vector<std::vector<AttentionBlock>> blocks_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, at::Tensor> masks_;
};
using AttentionPlanPtr = c10::intrusive_ptr<AttentionPlan>;

// q [R, heads * head_dim], k and v [R, kv_heads * head_dim] before rotation; R may exceed the
// plan's tokens, the rows beyond them come out as zeros. Returns [R, heads * head_dim]. The fused
// path rotates q and k in place: they must be fresh outputs that nothing else reads.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RopeTable& table, const AttentionPlanPtr& plan);

}  // namespace retort::models
