// Numbers in the tensors of an answer that can be what they claim to be.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace retort::engines::kserve {

// `name`: our name of the tensor, for messages. All throw kCorrupt naming it and the place.

// float32, any shape: no NaN, none above 0. Minus infinity, a token that cannot be, may stand.
void check_log_probs(const std::string& name, const at::Tensor& values);
// ids [R, K] int32: from 0 on, below `vocab_rows` unless that is 0, none twice in a row; log_probs
// [R, K] float32 falls along a row.
void check_top_k(const at::Tensor& ids, const at::Tensor& log_probs, int64_t vocab_rows);
// float32, float16 or bfloat16, any shape: no NaN, no infinity.
void check_finite(const std::string& name, const at::Tensor& values);

}  // namespace retort::engines::kserve
