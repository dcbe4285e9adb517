// Attention over packed sequences on a GPU, all sequences in one kernel: nothing of size [length,
// length] is ever kept. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/ops/attention_plan.h"
#include "models/ops/functions.h"
#include "models/ops/rope.h"

namespace retort::models {

// True when device_attention() takes these queries: on a GPU; bf16 or fp16 with head_dim a multiple
// of 8 up to 256, or fp32 without a sliding window that cuts; no forks. All else goes block by
// block (models/ops/attention.cc).
bool has_device_kernel(const at::Tensor& q, const AttentionPlan& plan);

// As packed_attention(), but q and k stay as they are. bf16 and fp16: flash attention (kv heads are
// shared, not repeated); fp32: ATen's memory-efficient attention. Differentiable by ATen's own
// backward of those kernels, whose sums are not in a fixed order unless ATen's deterministic
// algorithms are on.
at::Tensor device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const HeadNorms& norms, const RopeTable& table,
                            const AttentionPlanPtr& plan);
// The same of heads that are normed and rotated already: q [N, heads, head_dim], k and v [N,
// kv_heads, head_dim], N the plan's tokens. Returns [N, heads * head_dim].
at::Tensor rotated_device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const AttentionPlanPtr& plan);

}  // namespace retort::models
