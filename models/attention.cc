#include "models/attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/attention_packed_device.h"
#include "models/functions.h"
#include "models/kernels.h"

namespace retort::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

double scale_of(const HeadShape& shape) {
  return 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
}

// Runs f(s) for each sequence: sequences in parallel where there are many, else each uses all
// threads inside.
template <class F>
void for_each_sequence(int64_t count, const F& f) {
  if (count < 2 * at::get_num_threads() || at::get_num_threads() == 1) {
    for (int64_t s = 0; s < count; ++s)
      f(s);
    return;
  }
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    // the calling thread's guard does not reach pool threads
    at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t s = begin; s < end; ++s)
      f(s);
  });
}

// Rows [first, first + count) of [R, kv_heads * group * head_dim] as [kv_heads, group, count,
// head_dim], without a copy.
Tensor query_view(const Tensor& rows, int64_t first, int64_t count, const HeadShape& shape) {
  const int64_t width = shape.heads * shape.head_dim;
  return rows.as_strided({shape.kv_heads, shape.group(), count, shape.head_dim},
                         {shape.group() * shape.head_dim, shape.head_dim, width, 1},
                         rows.storage_offset() + first * width);
}

// Keys of each kv head repeated over its group with stride 0.
Tensor key_view(const Tensor& rows, int64_t first, int64_t count, const HeadShape& shape) {
  const int64_t width = shape.kv_heads * shape.head_dim;
  return rows.as_strided({shape.kv_heads, shape.group(), count, shape.head_dim},
                         {shape.head_dim, 0, width, 1}, rows.storage_offset() + first * width);
}

// The gradient counterpart of key_view: one row set for each kv head.
Tensor key_grad_view(const Tensor& rows, int64_t first, int64_t count, const HeadShape& shape) {
  const int64_t width = shape.kv_heads * shape.head_dim;
  return rows.as_strided({shape.kv_heads, count, shape.head_dim}, {shape.head_dim, width, 1},
                         rows.storage_offset() + first * width);
}

std::optional<Tensor> optional_mask(const AttentionBlock& block) {
  return block.mask.defined() ? std::optional<Tensor>(block.mask) : std::nullopt;
}

void rotate_in_place(const Tensor& x, const RopeTable& table, int64_t heads, int64_t head_dim,
                     float sign) {
  rotate_rows(static_cast<float*>(x.mutable_data_ptr()), table.cos.const_data_ptr<float>(),
              table.sin.const_data_ptr<float>(), x.size(0), heads, head_dim, sign);
}

void zero_padding(const Tensor& rows, int64_t num_tokens) {
  if (num_tokens < rows.size(0)) rows.narrow(0, num_tokens, rows.size(0) - num_tokens).zero_();
}

// Each block saves one tensor, from slot `first` on: the slot of every sequence's first block, and
// the slot behind the last.
std::vector<size_t> log_sum_slots(const AttentionPlan& plan, size_t first) {
  std::vector<size_t> slots{first};
  for (int64_t s = 0; s < plan.num_sequences(); ++s)
    slots.push_back(slots.back() + plan.blocks(s).size());
  return slots;
}

// Rotation and attention in one node of autograd, by ATen's flash attention for the CPU.
class FusedAttention : public Function<FusedAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const RopeTable& table, const AttentionPlanPtr& plan) {
    // The caller gives q and k away: they are rotated where they lie.
    const HeadShape& shape = plan->shape();
    rotate_in_place(q, table, shape.heads, shape.head_dim, 1.0f);
    rotate_in_place(k, table, shape.kv_heads, shape.head_dim, 1.0f);
    Tensor out = at::empty(q.sizes(), q.options());
    zero_padding(out, plan->num_tokens());

    // Besides these, backward needs the log-sums of every block.
    variable_list saved{q, k, v, out, table.cos, table.sin};
    const std::vector<size_t> slots = log_sum_slots(*plan, kFixedSlots);
    saved.resize(slots.back());

    // Each block writes its own rows and its own slot, so that sequences may run in parallel.
    for_each_sequence(plan->num_sequences(), [&](int64_t s) {
      size_t slot = slots[static_cast<size_t>(s)];
      for (const AttentionBlock& block : plan->blocks(s)) {
        const int64_t row = plan->begin(s) + block.query_begin;
        const int64_t key_row = plan->begin(s) + block.key_begin;
        auto [result, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
            query_view(q, row, block.num_queries, shape),
            key_view(k, key_row, block.num_keys, shape),
            key_view(v, key_row, block.num_keys, shape), 0.0, block.causal, optional_mask(block),
            scale_of(shape));
        query_view(out, row, block.num_queries, shape).copy_(result);
        saved[slot++] = log_sums;
      }
    });

    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // What forward saved.
    const variable_list saved = ctx->get_saved_variables();
    const auto plan =
        c10::static_intrusive_pointer_cast<AttentionPlan>(ctx->saved_data["plan"].toCapsule());
    const HeadShape& shape = plan->shape();
    const Tensor& q = saved[0];
    const Tensor& k = saved[1];
    const Tensor& v = saved[2];
    const Tensor& out = saved[3];
    const RopeTable table{saved[4], saved[5]};
    const std::vector<size_t> slots = log_sum_slots(*plan, kFixedSlots);
    const Tensor dout = grads[0].contiguous();

    // A query stands in one block; a key may stand in several, whose gradients add up.
    Tensor dq = at::empty(q.sizes(), q.options());
    zero_padding(dq, plan->num_tokens());
    Tensor dk = at::zeros(k.sizes(), k.options());
    Tensor dv = at::zeros(v.sizes(), v.options());

    // ATen's gradient of k and v has a row for each query head: the heads of a group are summed.
    for_each_sequence(plan->num_sequences(), [&](int64_t s) {
      size_t slot = slots[static_cast<size_t>(s)];
      for (const AttentionBlock& block : plan->blocks(s)) {
        const int64_t row = plan->begin(s) + block.query_begin;
        const int64_t key_row = plan->begin(s) + block.key_begin;
        auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            query_view(dout, row, block.num_queries, shape),
            query_view(q, row, block.num_queries, shape),
            key_view(k, key_row, block.num_keys, shape),
            key_view(v, key_row, block.num_keys, shape),
            query_view(out, row, block.num_queries, shape), saved[slot++], 0.0, block.causal,
            optional_mask(block), scale_of(shape));
        query_view(dq, row, block.num_queries, shape).copy_(gq);
        key_grad_view(dk, key_row, block.num_keys, shape)
            .add_(shape.group() == 1 ? gk.squeeze(1) : gk.sum(1));
        key_grad_view(dv, key_row, block.num_keys, shape)
            .add_(shape.group() == 1 ? gv.squeeze(1) : gv.sum(1));
      }
    });

    // The gradients of the rotated q and k become those of the ones given.
    rotate_in_place(dq, table, shape.heads, shape.head_dim, -1.0f);
    rotate_in_place(dk, table, shape.kv_heads, shape.head_dim, -1.0f);
    return {dq, dk, dv, Tensor(), Tensor()};
  }

 private:
  static constexpr size_t kFixedSlots = 6;  // q, k, v, out, cos, sin: saved before the log-sums
};

// One block by ATen's own attention: q [n, heads, d], k and v [m, kv_heads, d] -> [n, heads * d].
Tensor plain_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlock& block,
                   const HeadShape& shape) {
  auto batch = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const Tensor y = at::scaled_dot_product_attention(batch(q), batch(k), batch(v),
                                                    optional_mask(block), 0.0, block.causal,
                                                    scale_of(shape), shape.heads != shape.kv_heads);
  return y.squeeze(0).transpose(0, 1).reshape({block.num_queries, shape.heads * shape.head_dim});
}

// A mask where the queries are, in their dtype: as attention reads it, so that no call copies it.
Tensor in_dtype_of(const at::TensorOptions& queries, const Tensor& mask) {
  return mask.to(queries.device(), c10::typeMetaToScalarType(queries.dtype()));
}

Tensor concatenate(std::vector<Tensor> parts, const Tensor& like, int64_t num_tokens) {
  if (num_tokens < like.size(0))
    parts.push_back(at::zeros({like.size(0) - num_tokens, like.size(1)}, like.options()));
  return parts.empty() ? at::zeros(like.sizes(), like.options()) : at::cat(parts, 0);
}

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, const RopeTable& table,
                       const AttentionPlanPtr& plan) {
  const HeadShape& shape = plan->shape();
  const Tensor q3 = rotate(q.view({-1, shape.heads, shape.head_dim}), table);
  const Tensor k3 = rotate(k.view({-1, shape.kv_heads, shape.head_dim}), table);
  const Tensor v3 = v.view({-1, shape.kv_heads, shape.head_dim});
  std::vector<Tensor> parts;
  for (int64_t s = 0; s < plan->num_sequences(); ++s) {
    for (const AttentionBlock& block : plan->blocks(s)) {
      const int64_t row = plan->begin(s) + block.query_begin;
      const int64_t key_row = plan->begin(s) + block.key_begin;
      parts.push_back(plain_block(q3.narrow(0, row, block.num_queries),
                                  k3.narrow(0, key_row, block.num_keys),
                                  v3.narrow(0, key_row, block.num_keys), block, shape));
    }
  }
  return concatenate(std::move(parts), q, plan->num_tokens());
}

}  // namespace

AttentionPlan::AttentionPlan(HeadShape shape, const std::vector<int64_t>& cu_seqlens,
                             const std::vector<Fork>& forks, int64_t window,
                             const at::TensorOptions& options)
    : shape_(shape), cu_seqlens_(cu_seqlens), window_(window) {
  RETORT_CHECK(forks.empty() || forks.size() + 1 == cu_seqlens.size())
      << "a fork for each sequence";
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    blocks_.emplace_back();
    const int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    const Fork fork = forks.empty() ? Fork{} : forks[s];
    RETORT_CHECK(fork.prefix <= fork.begin && fork.begin <= length)
        << "a fork outside its sequence";
    const int64_t trunk = fork.begin > 0 ? fork.begin : length;
    if (trunk > 0) add_blocks(trunk, options);
    if (trunk < length) add_fork(fork, length, options);
    has_forks_ = has_forks_ || trunk < length;
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
    Tensor made =
        at::empty({static_cast<int64_t>(cu_seqlens_.size())}, at::TensorOptions().dtype(at::kInt));
    std::copy(cu_seqlens_.begin(), cu_seqlens_.end(), made.mutable_data_ptr<int32_t>());
    device_cu_seqlens_ = made.to(device);
  }
  return device_cu_seqlens_;
}

// One block of queries [begin, length) over keys [first, length); the keys between prefix and begin
// are masked.
void AttentionPlan::add_fork(const Fork& fork, int64_t length, const at::TensorOptions& options) {
  const int64_t queries = length - fork.begin;
  const int64_t first =
      window_ > 0 ? std::min(std::max<int64_t>(0, fork.prefix - window_ + 1), fork.begin) : 0;
  Tensor made =
      at::full({queries, length - first}, -INFINITY, at::TensorOptions().dtype(at::kFloat));

  // Open to query i: the prefix, and its own continuation up to itself, both inside the window.
  auto* row = made.mutable_data_ptr<float>();
  for (int64_t i = 0; i < queries; ++i, row += length - first) {
    const int64_t position = fork.prefix + i;
    const int64_t oldest = window_ > 0 ? std::max<int64_t>(0, position - window_ + 1) : 0;
    for (int64_t key = std::max(first, oldest); key < fork.prefix; ++key)
      row[key - first] = 0.0f;
    for (int64_t j = std::max<int64_t>(0, oldest - fork.prefix); j <= i; ++j)
      row[fork.begin + j - first] = 0.0f;
  }

  blocks_.back().push_back(
      {fork.begin, queries, first, length - first, false, in_dtype_of(options, made)});
}

void AttentionPlan::add_blocks(int64_t length, const at::TensorOptions& options) {
  std::vector<AttentionBlock>& blocks = blocks_.back();
  if (window_ == 0 || length <= window_) {
    blocks.push_back({0, length, 0, length, true, {}});
    return;
  }
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

Tensor packed_attention(const Tensor& q, const Tensor& k, const Tensor& v, const RopeTable& table,
                        const AttentionPlanPtr& plan) {
  if (fused_path(q) && fused_path(k) && fused_path(v))
    return FusedAttention::apply(q, k, v, table, plan);
  if (has_device_kernel(q, *plan)) return device_attention(q, k, v, table, plan);
  return plain_attention(q, k, v, table, plan);
}

}  // namespace retort::models
