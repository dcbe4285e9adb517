// Causal attention over packed sequences, with rotary embedding, grouped heads and sliding windows.
// Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/ops/attention_plan.h"
#include "models/ops/functions.h"
#include "models/ops/rope.h"

namespace retort::models {

// q [R, heads * head_dim], k and v [R, kv_heads * head_dim] before the norms of their heads (Qwen3,
// Gemma 3) and their rotation; R may exceed the plan's tokens, the rows beyond them come out as
// zeros. Returns [R, heads * head_dim]. The fused path rotates q and k in place: they must be fresh
// outputs that nothing else reads.
// With a softcap, which no kernel of ATen's knows, the scores of a block are formed whole.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const HeadNorms& norms, const RopeTable& table,
                            const AttentionPlanPtr& plan);

// The same of heads that are normed and rotated already: q [N, heads, head_dim], k and v [N,
// kv_heads, head_dim], N the plan's tokens, at least one. Returns [N, heads * head_dim].
at::Tensor rotated_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionPlanPtr& plan);

}  // namespace retort::models
