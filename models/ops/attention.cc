#include "models/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/ops/attention_packed_device.h"
#include "models/ops/attention_plan.h"
#include "models/ops/device_functions.h"
#include "models/ops/functions.h"
#include "models/ops/kernels.h"
#include "models/ops/softcap.h"

namespace retort::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Runs f(s) for each sequence. Where there are many, sequences run in parallel; else they run one
// by one, and each uses all threads inside.
template <class F>
void for_each_sequence(int64_t count, const F& f) {
  if (count < 2 * at::get_num_threads() || at::get_num_threads() == 1) {
    for (int64_t s = 0; s < count; ++s)
      f(s);
    return;
  }
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    // The calling thread's guard does not reach the threads of the pool.
    at::AutoDispatchBelowADInplaceOrView guard;
    for (int64_t s = begin; s < end; ++s)
      f(s);
  });
}

// Views rows [first, first + count) of [R, kv_heads * group * head_dim] as [kv_heads, group, count,
// head_dim], without a copy.
Tensor query_view(const Tensor& rows, int64_t first, int64_t count, const HeadShape& shape) {
  const int64_t width = shape.heads * shape.head_dim;
  return rows.as_strided({shape.kv_heads, shape.group(), count, shape.head_dim},
                         {shape.group() * shape.head_dim, shape.head_dim, width, 1},
                         rows.storage_offset() + first * width);
}

// Returns the keys of each kv head, repeated over its group with stride 0, so that nothing is
// copied.
Tensor key_view(const Tensor& rows, int64_t first, int64_t count, const HeadShape& shape) {
  const int64_t width = shape.kv_heads * shape.head_dim;
  return rows.as_strided({shape.kv_heads, shape.group(), count, shape.head_dim},
                         {shape.head_dim, 0, width, 1}, rows.storage_offset() + first * width);
}

// Views the gradient of key_view: one set of rows for each kv head.
Tensor key_grad_view(const Tensor& rows, int64_t first, int64_t count, const HeadShape& shape) {
  const int64_t width = shape.kv_heads * shape.head_dim;
  return rows.as_strided({shape.kv_heads, count, shape.head_dim}, {shape.head_dim, width, 1},
                         rows.storage_offset() + first * width);
}

// Returns rows [key_begin, + num_keys) of a block's keys or values behind those of its prefix;
// without a prefix nothing is copied.
Tensor gathered_rows(const Tensor& rows, int64_t sequence, const AttentionBlock& block) {
  const Tensor own = rows.narrow(0, sequence + block.key_begin, block.num_keys);
  if (block.num_prefix == 0) return own;
  return at::cat({rows.narrow(0, sequence + block.prefix_begin, block.num_prefix), own});
}

// The keys or values of a block of the sequence that begins at row `sequence`, as key_view() has
// them.
Tensor block_keys(const Tensor& rows, int64_t sequence, const AttentionBlock& block,
                  const HeadShape& shape) {
  if (block.num_prefix == 0)
    return key_view(rows, sequence + block.key_begin, block.num_keys, shape);
  const Tensor gathered = gathered_rows(rows, sequence, block);
  return key_view(gathered, 0, gathered.size(0), shape);
}

// Adds the gradient of block_keys(), [kv_heads, group, keys, head_dim] with a row for each query
// head, to that of the rows which they were made of: the heads of a group are summed.
void add_block_keys(const Tensor& rows, int64_t sequence, const AttentionBlock& block,
                    const HeadShape& shape, const Tensor& gradient) {
  const Tensor sum = shape.group() == 1 ? gradient.squeeze(1) : gradient.sum(1);
  if (block.num_prefix > 0)
    key_grad_view(rows, sequence + block.prefix_begin, block.num_prefix, shape)
        .add_(sum.narrow(1, 0, block.num_prefix));
  key_grad_view(rows, sequence + block.key_begin, block.num_keys, shape)
      .add_(sum.narrow(1, block.num_prefix, block.num_keys));
}

std::optional<Tensor> optional_mask(const AttentionBlock& block) {
  return block.mask.defined() ? std::optional<Tensor>(block.mask) : std::nullopt;
}

void rotate_in_place(const Tensor& x, const RopeTable& table, int64_t heads, int64_t head_dim,
                     float sign) {
  rotate_rows(static_cast<float*>(x.mutable_data_ptr()), table.cos.const_data_ptr<float>(),
              table.sin.const_data_ptr<float>(), x.size(0), heads, head_dim, table.cos.size(-1),
              sign);
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

// Does rotation and attention in one node of autograd, by the flash attention of ATen for the CPU,
// so that the rotated q and k are the only ones kept.
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
        const int64_t sequence = plan->begin(s);
        const int64_t row = sequence + block.query_begin;
        auto [result, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
            query_view(q, row, block.num_queries, shape), block_keys(k, sequence, block, shape),
            block_keys(v, sequence, block, shape), 0.0, block.causal, optional_mask(block),
            shape.score_scale());
        query_view(out, row, block.num_queries, shape).copy_(result);
        saved[slot++] = log_sums;
      }
    });

    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // Forward saved these, and behind them the log-sums of the blocks.
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

    for_each_sequence(plan->num_sequences(), [&](int64_t s) {
      size_t slot = slots[static_cast<size_t>(s)];
      for (const AttentionBlock& block : plan->blocks(s)) {
        const int64_t sequence = plan->begin(s);
        const int64_t row = sequence + block.query_begin;
        auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            query_view(dout, row, block.num_queries, shape),
            query_view(q, row, block.num_queries, shape), block_keys(k, sequence, block, shape),
            block_keys(v, sequence, block, shape), query_view(out, row, block.num_queries, shape),
            saved[slot++], 0.0, block.causal, optional_mask(block), shape.score_scale());
        query_view(dq, row, block.num_queries, shape).copy_(gq);
        add_block_keys(dk, sequence, block, shape, gk);
        add_block_keys(dv, sequence, block, shape, gv);
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

// Attends in one block by ATen's own attention: q [n, heads, d], k and v [m, kv_heads, d] -> [n,
// heads * d].
Tensor plain_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlock& block,
                   const HeadShape& shape) {
  auto batch = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const Tensor y = at::scaled_dot_product_attention(
      batch(q), batch(k), batch(v), optional_mask(block), 0.0, block.causal, shape.score_scale(),
      shape.heads != shape.kv_heads);
  return y.squeeze(0).transpose(0, 1).reshape({block.num_queries, shape.heads * shape.head_dim});
}

// Attends with capped scores, which no kernel here knows, by operators; shapes are those of
// plain_block.
Tensor capped_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlock& block,
                    const HeadShape& shape) {
  // The query heads of one kv head become further queries of that head, so that no key is copied
  // for them.
  const int64_t queries = block.num_queries;
  const int64_t keys = k.size(0);
  const Tensor rows = q.reshape({queries, shape.kv_heads, shape.group(), shape.head_dim})
                          .permute({1, 2, 0, 3})
                          .reshape({shape.kv_heads, shape.group() * queries, shape.head_dim});
  const Tensor scores = at::matmul(rows, k.permute({1, 2, 0})) * shape.score_scale();
  Tensor capped = softcapped(scores, shape.softcap);
  capped = capped.view({shape.kv_heads, shape.group(), queries, keys});

  // The softmax is in fp32 at least, as in the kernels.
  const Tensor mask =
      block.causal ? at::full({queries, keys}, -INFINITY, capped.options()).triu(1) : block.mask;
  if (mask.defined()) capped = capped + mask;
  const bool is_double = q.scalar_type() == at::kDouble;
  const Tensor weights =
      at::softmax(capped, -1, is_double ? at::kDouble : at::kFloat).to(q.scalar_type());
  return at::matmul(weights.view({shape.kv_heads, shape.group() * queries, keys}),
                    v.transpose(0, 1))
      .view({shape.kv_heads, shape.group(), queries, shape.head_dim})
      .permute({2, 0, 1, 3})
      .reshape({queries, shape.heads * shape.head_dim});
}

Tensor concatenate(std::vector<Tensor> parts, const Tensor& like, int64_t num_tokens) {
  if (num_tokens < like.size(0))
    parts.push_back(at::zeros({like.size(0) - num_tokens, like.size(1)}, like.options()));
  return parts.empty() ? at::zeros(like.sizes(), like.options()) : at::cat(parts, 0);
}

// Attends block by block to heads that are normed and rotated: [queries, heads * head_dim] of each
// block, in the order of the rows.
std::vector<Tensor> attended_blocks(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionPlan& plan) {
  const HeadShape& shape = plan.shape();
  const auto attend = shape.softcap > 0 ? capped_block : plain_block;
  std::vector<Tensor> parts;
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t sequence = plan.begin(s);
    for (const AttentionBlock& block : plan.blocks(s))
      parts.push_back(attend(q.narrow(0, sequence + block.query_begin, block.num_queries),
                             gathered_rows(k, sequence, block), gathered_rows(v, sequence, block),
                             block, shape));
  }
  return parts;
}

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, const HeadNorms& norms,
                       const RopeTable& table, const AttentionPlanPtr& plan) {
  const HeadShape& shape = plan->shape();
  const auto [q3, k3] = normed_rotated_heads(q, k, norms, table, shape.head_dim);
  const Tensor v3 = v.view({-1, shape.kv_heads, shape.head_dim});
  std::vector<Tensor> parts = attended_blocks(q3, k3, v3, *plan);
  // Without tokens backward must still reach the weights, those of the norms too: tensor-parallel
  // ranks sum their gradients, and a bucket of gradients is not sent before all of its have come.
  if (parts.empty()) return q3.reshape(q.sizes()) * 0 + (k3.sum() + v3.sum()) * 0;
  return concatenate(std::move(parts), q, plan->num_tokens());
}

}  // namespace

Tensor packed_attention(const Tensor& q, const Tensor& k, const Tensor& v, const HeadNorms& norms,
                        const RopeTable& table, const AttentionPlanPtr& plan) {
  const HeadShape& shape = plan->shape();
  if (shape.softcap > 0) return plain_attention(q, k, v, norms, table, plan);
  if (fused_path(q) && fused_path(k) && fused_path(v))
    return FusedAttention::apply(head_norm(q, norms.q, norms, shape.head_dim),
                                 head_norm(k, norms.k, norms, shape.head_dim), v, table, plan);
  if (has_device_kernel(q, *plan)) return device_attention(q, k, v, norms, table, plan);
  return plain_attention(q, k, v, norms, table, plan);
}

Tensor rotated_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionPlanPtr& plan) {
  if (plan->shape().softcap == 0 && has_device_kernel(q, *plan))
    return rotated_device_attention(q, k, v, plan);
  const std::vector<Tensor> parts = attended_blocks(q, k, v, *plan);
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace retort::models
