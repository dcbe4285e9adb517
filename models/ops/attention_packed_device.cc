// Calls ATen's operators by name; the kernels come from libtorch_cuda, which the CUDA module brings
// into the process.
#include "models/ops/attention_packed_device.h"

#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>

#include <optional>
#include <tuple>

#include "models/ops/device_functions.h"

namespace retort::models {
namespace {

using at::Tensor;

constexpr int64_t kMaxFlashHeadDim = 256;
constexpr int64_t kFlashHeadDimStep = 8;
constexpr int64_t kCausalFromTopLeft = 1;  // of _efficient_attention_forward's mask types

bool is_half(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

// q [N, heads, d], k and v [N, kv_heads, d] -> [N, heads, d]
Tensor flash(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionPlanPtr& plan,
             double scale) {
  const Tensor& offsets = plan->cu_seqlens_on(q.device());
  const int64_t longest = plan->max_length();
  std::optional<int64_t> before, after;  // keys that a query sees besides its own
  if (plan->window() > 0 && plan->window() < longest) {
    before = plan->window() - 1;
    after = 0;
  }
  return std::get<0>(at::_flash_attention_forward(
      q, k, v, offsets, offsets, longest, longest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale, before, after));
}

// Copies keys to one head for each head of queries, because the kernel knows no groups. Autograd
// sums the gradients of the copies.
Tensor repeat_heads(const Tensor& x, int64_t group) {
  if (group == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), group, x.size(2)})
      .reshape({x.size(0), x.size(1) * group, x.size(2)});
}

Tensor efficient(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionPlanPtr& plan,
                 double scale) {
  const Tensor& offsets = plan->cu_seqlens_on(q.device());
  const int64_t longest = plan->max_length();
  const int64_t group = plan->shape().group();
  const auto result = at::_efficient_attention_forward(
      q.unsqueeze(0), repeat_heads(k, group).unsqueeze(0), repeat_heads(v, group).unsqueeze(0),
      /*bias=*/std::nullopt, offsets, offsets, longest, longest, /*dropout_p=*/0.0,
      kCausalFromTopLeft, /*compute_log_sumexp=*/true, scale);
  return std::get<0>(result).squeeze(0);
}

}  // namespace

bool has_device_kernel(const Tensor& q, const AttentionPlan& plan) {
  if (!q.is_cuda() || plan.has_forks() || plan.num_tokens() == 0) return false;
  const int64_t head_dim = plan.shape().head_dim;
  if (is_half(q)) return head_dim <= kMaxFlashHeadDim && head_dim % kFlashHeadDimStep == 0;
  return q.scalar_type() == at::kFloat &&
         (plan.window() == 0 || plan.window() >= plan.max_length());
}

Tensor rotated_device_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionPlanPtr& plan) {
  const HeadShape& shape = plan->shape();
  const double scale = shape.score_scale();
  const Tensor y = is_half(q) ? flash(q, k, v, plan, scale) : efficient(q, k, v, plan, scale);
  return y.reshape({plan->num_tokens(), shape.heads * shape.head_dim});
}

Tensor device_attention(const Tensor& q, const Tensor& k, const Tensor& v, const HeadNorms& norms,
                        const RopeTable& table, const AttentionPlanPtr& plan) {
  const HeadShape& shape = plan->shape();
  const int64_t tokens = plan->num_tokens();
  const int64_t padding = q.size(0) - tokens;
  const auto [turned_q, turned_k] = normed_rotated_heads(q, k, norms, table, shape.head_dim);
  // A narrowed view's gradient is a copy of all rows, so only what is padded is narrowed.
  const auto filled = [&](const Tensor& x) { return padding == 0 ? x : x.narrow(0, 0, tokens); };
  const Tensor v3 = v.view({-1, shape.kv_heads, shape.head_dim});
  const Tensor rows =
      rotated_device_attention(filled(turned_q), filled(turned_k), filled(v3), plan);
  return padding == 0 ? rows : at::constant_pad_nd(rows, {0, 0, 0, padding});
}

}  // namespace retort::models
