// How the attention of packed sequences is cut into blocks of queries and keys. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "models/ops/packed.h"

namespace retort::models {

struct HeadShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double scale = 0;    // of scores; 0: 1 / sqrt(head_dim)
  double softcap = 0;  // c > 0: scaled scores x become c tanh(x / c), before the mask
  int64_t group() const { return heads / kv_heads; }
  double score_scale() const {
    return scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  }
};

// A run of queries of one sequence and the keys that any of them sees. Offsets count from the
// sequence's first token.
struct AttentionBlock {
  int64_t query_begin = 0;
  int64_t num_queries = 0;
  int64_t key_begin = 0;
  int64_t num_keys = 0;
  bool causal = false;  // square and causal, no mask needed
  // [num_queries, num_prefix + num_keys] of the queries' dtype, 0 or -inf; undefined: every query
  // sees every key
  at::Tensor mask;
  // A branch has also keys [prefix_begin, prefix_begin + num_prefix), which stand before its own
  // ones.
  int64_t prefix_begin = 0;
  int64_t num_prefix = 0;
};

// Queries of a block where `length` tokens are cut into blocks: about a quarter. ATen's kernel for
// the CPU computes a causal square of less than 512 keys, and what is masked, in full, so that a
// query pays for all keys of its block.
inline int64_t block_queries(int64_t length) {
  return std::clamp<int64_t>((length / 4 + 31) / 32 * 32, 64, 256);
}
// True when fp32 sequences of so many tokens are cut on the CPU: below, a call costs what it saves;
// above, the kernel itself leaves out what lies ahead.
inline bool cut_into_blocks(int64_t length) { return length >= 128 && length < 1024; }

// The blocks of each sequence for one window size; made once for each forward and shared by the
// layers. A sequence longer than the window is cut into blocks, so that memory and time grow with
// length * window.
// Sequences and branches cut into block_queries(): the keys of a branch are copied behind those of
// the prefix, so that the keys of every block follow one another as their positions do. All their
// masks are then parts of one, of the most queries of a block by as many and the longest sequence,
// or prefix and branch, or window.
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
  // cu_seqlens() as int32 on a device, made once, unless somebody has it there already and gives it
  // before. The compute thread only.
  const at::Tensor& cu_seqlens_on(const at::Device& device);
  void keep_cu_seqlens(at::Tensor there) { device_cu_seqlens_ = std::move(there); }
  const std::vector<AttentionBlock>& blocks(int64_t s) const {
    return blocks_[static_cast<size_t>(s)];
  }

 private:
  void add_blocks(int64_t length, const at::TensorOptions& options);
  void add_cut(int64_t prefix, int64_t begin, int64_t end);
  void make_late_mask(const std::vector<Fork>& forks, const at::TensorOptions& options);
  at::Tensor late_mask(int64_t num_queries, int64_t keys_before) const;
  at::Tensor mask(int64_t num_queries, int64_t num_keys, int64_t offset,
                  const at::TensorOptions& options);

  HeadShape shape_;
  std::vector<int64_t> cu_seqlens_;
  int64_t window_;
  bool has_forks_ = false;
  at::Tensor device_cu_seqlens_;
  std::vector<std::vector<AttentionBlock>> blocks_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, at::Tensor> masks_;
  bool cuts_;                     // sequences without a window, too
  at::Tensor late_mask_;          // undefined if nothing is cut
  int64_t late_keys_before_ = 0;  // its columns before the one that its first row ends with
};
using AttentionPlanPtr = c10::intrusive_ptr<AttentionPlan>;

}  // namespace retort::models
