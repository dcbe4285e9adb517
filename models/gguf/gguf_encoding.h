// The numbers of a tensor as GGUF stores them. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "models/gguf/gguf_writer.h"

namespace retort::models {

// A contiguous tensor on the CPU whose bytes are those of the file: of the type's dtype, for kQ8_0
// of uint8 [rows, row bytes]. Conversions round to the nearest, ties to even. kQ8_0 rounds as
// ggml's reference does: scale d = (largest magnitude of the block) / 127 in f32, stored as f16;
// each number is x * (1 / d), rounded to the nearest integer, ties away from zero; a block of zeros
// has d = 0.
//   values   any floating dtype and strides; for kQ8_0 [rows, columns], columns a multiple of 32
// Memory: a copy in the file's type where dtype or strides differ; for kQ8_0 also one in f32.
// Errors: kInvalidArgument naming the tensor for numbers that are not finite in the file's type,
// and for rows that kQ8_0 cannot cut into blocks.
at::Tensor gguf_encode(const std::string& name, const at::Tensor& values, GgufType type);

}  // namespace retort::models
