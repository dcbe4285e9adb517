#include "models/ops/attention_plan.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "parallel/staged_copy.h"

namespace retort::models {
namespace {

using at::Tensor;

// Puts a mask on the device of the queries and in their dtype, as attention reads it, so that no
// call copies it. A large one is waited for: pinned memory of its size would stay allocated.
Tensor in_dtype_of(const at::TensorOptions& queries, const Tensor& mask) {
  constexpr size_t kSmall = size_t{4} << 20;
  const Tensor converted = mask.to(c10::typeMetaToScalarType(queries.dtype()));
  if (converted.nbytes() > kSmall) return converted.to(queries.device());
  return parallel::staged_to(queries.device(), converted);
}

// Returns the end of what stands before the branches of a sequence, and of each branch.
std::vector<int64_t> ends_of(const Fork& fork, int64_t length) {
  std::vector<int64_t> ends = fork.begins;
  ends.push_back(length);
  RETORT_CHECK(fork.prefix >= 0 && fork.prefix <= ends.front() &&
               std::is_sorted(ends.begin(), ends.end()))
      << "a fork outside its sequence";
  return ends;
}

}  // namespace

AttentionPlan::AttentionPlan(HeadShape shape, const std::vector<int64_t>& cu_seqlens,
                             const std::vector<Fork>& forks, int64_t window,
                             const at::TensorOptions& options)
    : shape_(shape),
      cu_seqlens_(cu_seqlens),
      window_(window),
      cuts_(options.device().is_cpu() && options.dtype() == at::kFloat) {
  RETORT_CHECK(forks.empty() || forks.size() + 1 == cu_seqlens.size())
      << "a fork for each sequence";
  make_late_mask(forks, options);
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const Fork fork = forks.empty() ? Fork{} : forks[s];
    const std::vector<int64_t> ends = ends_of(fork, cu_seqlens[s + 1] - cu_seqlens[s]);
    blocks_.emplace_back();
    if (ends.front() > 0) add_blocks(ends.front(), options);
    for (size_t branch = 1; branch < ends.size(); ++branch)
      add_cut(fork.prefix, ends[branch - 1], ends[branch]);
    has_forks_ = has_forks_ || ends.front() < ends.back();
  }
}

int64_t AttentionPlan::max_length() const {
  int64_t longest = 0;
  for (int64_t s = 0; s < num_sequences(); ++s)
    longest = std::max(longest, length(s));
  return longest;
}

const Tensor& AttentionPlan::cu_seqlens_on(const at::Device& device) {
  if (!device_cu_seqlens_.defined() || device_cu_seqlens_.device() != device) {
    device_cu_seqlens_ = parallel::staged_to(device, at::tensor(cu_seqlens_, at::kInt));
  }
  return device_cu_seqlens_;
}

// Cuts queries [begin, end), which see the first `prefix` tokens and themselves as far as the
// window reaches.
void AttentionPlan::add_cut(int64_t prefix, int64_t begin, int64_t end) {
  const int64_t step = block_queries(end - begin);
  for (int64_t offset = 0; begin + offset < end; offset += step) {
    const int64_t queries = std::min(step, end - begin - offset);
    const int64_t position = prefix + offset;  // of the first query
    const int64_t oldest = window_ > 0 ? std::max<int64_t>(0, position - window_ + 1) : 0;

    // The block's keys begin at position `oldest`: first the last ones of the prefix, then their
    // own.
    const int64_t first_own = std::max<int64_t>(0, oldest - prefix);
    AttentionBlock block{begin + offset, queries, begin + first_own, offset + queries - first_own};
    block.prefix_begin = std::min(oldest, prefix);
    block.num_prefix = prefix - block.prefix_begin;
    block.causal = position == 0 && (window_ == 0 || queries <= window_);
    if (!block.causal && queries > 1) block.mask = late_mask(queries, position - oldest);
    blocks_.back().push_back(std::move(block));
  }
}

// Makes the one mask that all late blocks are parts of: row i sees column c if key c is not behind
// query i and inside its window, where column late_keys_before_ is the key of query 0.
void AttentionPlan::make_late_mask(const std::vector<Fork>& forks,
                                   const at::TensorOptions& options) {
  int64_t rows = 0;
  const auto fit = [&](int64_t prefix, int64_t length) {
    rows = std::max(rows, std::min(block_queries(length), length));
    late_keys_before_ = std::max(late_keys_before_, prefix + length);
  };
  for (size_t s = 0; s + 1 < cu_seqlens_.size(); ++s) {
    const Fork fork = forks.empty() ? Fork{} : forks[s];
    const std::vector<int64_t> ends = ends_of(fork, cu_seqlens_[s + 1] - cu_seqlens_[s]);
    if (cuts_ && cut_into_blocks(ends.front())) fit(0, ends.front());
    for (size_t branch = 1; branch < ends.size(); ++branch)
      fit(fork.prefix, ends[branch] - ends[branch - 1]);
  }
  if (rows == 0) return;
  if (window_ > 0) late_keys_before_ = std::min(late_keys_before_, window_ - 1);

  const int64_t columns = late_keys_before_ + rows;
  Tensor made = at::full({rows, columns}, -INFINITY, at::TensorOptions().dtype(at::kFloat));
  auto* row = made.mutable_data_ptr<float>();
  for (int64_t i = 0; i < rows; ++i, row += columns) {
    const int64_t own = late_keys_before_ + i;
    const int64_t first = window_ > 0 ? std::max<int64_t>(0, own - window_ + 1) : 0;
    std::fill(row + first, row + own + 1, 0.0f);
  }
  late_mask_ = in_dtype_of(options, made);
}

// Returns the part of it for queries of which the first sees `keys_before` keys before its own.
Tensor AttentionPlan::late_mask(int64_t num_queries, int64_t keys_before) const {
  const Tensor part = late_mask_.narrow(0, 0, num_queries)
                          .narrow(1, late_keys_before_ - keys_before, keys_before + num_queries);
  return part.is_cpu() ? part : part.contiguous();  // kernels of devices want aligned rows
}

void AttentionPlan::add_blocks(int64_t length, const at::TensorOptions& options) {
  std::vector<AttentionBlock>& blocks = blocks_.back();
  if (window_ == 0 || length <= window_) {
    if (cuts_ && cut_into_blocks(length)) return add_cut(0, 0, length);
    blocks.push_back({0, length, 0, length, true, {}});
    return;
  }

  // A block of so many queries sees less than a window of keys beyond its own, so that time grows
  // with length * window.
  const int64_t step = std::max<int64_t>(window_, 128);
  for (int64_t begin = 0; begin < length; begin += step) {
    const int64_t end = std::min(begin + step, length);
    const int64_t key_begin = std::max<int64_t>(0, begin - window_ + 1);
    AttentionBlock block{begin, end - begin, key_begin, end - key_begin, false, {}};
    if (block.num_queries > 1)
      block.mask = mask(block.num_queries, block.num_keys, begin - key_begin, options);
    blocks.push_back(std::move(block));
  }
}

Tensor AttentionPlan::mask(int64_t num_queries, int64_t num_keys, int64_t offset,
                           const at::TensorOptions& options) {
  // Blocks of one shape share a mask: all but the first and the last of a sequence have the same.
  Tensor& cached = masks_[{num_queries, num_keys, offset}];
  if (cached.defined()) return cached;
  Tensor made = at::full({num_queries, num_keys}, -INFINITY, at::TensorOptions().dtype(at::kFloat));
  auto* row = made.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num_queries; ++i, row += num_keys) {
    const int64_t position = i + offset;  // of the query, counted from the block's first key
    const int64_t first = std::max<int64_t>(0, position - window_ + 1);
    std::fill(row + first, row + position + 1, 0.0f);
  }
  cached = in_dtype_of(options, made);
  return cached;
}

}  // namespace retort::models
