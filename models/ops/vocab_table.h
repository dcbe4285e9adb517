// The tables of the vocabulary at a decoder's two ends: rows that tokens are looked up as, and
// products with the rows of the head. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/config/config.h"
#include "models/ops/tensor_parallel.h"

namespace retort::models {

// The embedding's rows of `ids` [N], and behind them zeros for `padding` more: the residual stream
// [R, H]. `table`: with tensor parallelism this rank's rows of the vocabulary. Differentiable; the
// pad token's row gets no gradient. Collectives: those of leave_block.
at::Tensor vocab_rows(const at::Tensor& table, const at::Tensor& ids, int64_t padding,
                      const ModelConfig& config, const TensorParallel& tp);

// Looked up rows as the first layer reads them: Gemma multiplies them by sqrt(hidden_size), rounded
// to their dtype, as transformers has it.
at::Tensor scaled_embedding(const at::Tensor& x, const ModelConfig& config);

// x [N, H] fp32 times the rows of `head` [V, H] of any dtype: [N, V] fp32.
at::Tensor vocab_products(const at::Tensor& x, const at::Tensor& head);

}  // namespace retort::models
