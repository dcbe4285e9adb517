#include "models/gguf/gguf_encoding.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace retort::models {
namespace {

at::ScalarType dtype_of(GgufType type) {
  switch (type) {
    case GgufType::kF16: return at::kHalf;
    case GgufType::kBF16: return at::kBFloat16;
    case GgufType::kF32:
    case GgufType::kQ8_0: return at::kFloat;
  }
  return at::kFloat;
}

void check_finite(const std::string& name, bool finite) {
  if (finite) return;
  throw Error(ErrorCode::kInvalidArgument,
              "tensor '" + name +
                  "' holds numbers that are not finite in the type of the GGUF file; if the model "
                  "is sound, export it as bf16 or f32")
      .with("tensor", name);
}

// Encodes one block. False if its scale is too large for f16.
bool encode_block(const float* numbers, uint8_t* bytes) {
  float largest = 0;
  for (int64_t i = 0; i < kQ8BlockSize; ++i)
    largest = std::max(largest, std::fabs(numbers[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  const c10::Half stored(scale);
  std::memcpy(bytes, &stored.x, sizeof stored.x);

  // std::round rounds ties away from zero.
  for (int64_t i = 0; i < kQ8BlockSize; ++i) {
    const auto rounded = static_cast<int8_t>(std::round(numbers[i] * inverse));
    bytes[sizeof stored.x + static_cast<size_t>(i)] = static_cast<uint8_t>(rounded);
  }
  return std::isfinite(static_cast<float>(stored));
}

at::Tensor encode_q8(const std::string& name, const at::Tensor& floats) {
  const int64_t columns = floats.size(-1);
  if (floats.dim() != 2 || columns % kQ8BlockSize != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "tensor '" + name + "' has rows of " + std::to_string(columns) +
                    " numbers; q8_0 stores blocks of 32: export it as f16, bf16 or f32")
        .with("tensor", name);
  }

  // Blocks never cross a row, whose length is a multiple of theirs.
  const int64_t row_bytes = columns / kQ8BlockSize * kQ8BlockBytes;
  at::Tensor blocks = at::empty({floats.size(0), row_bytes}, at::kByte);
  const auto* from = floats.const_data_ptr<float>();
  auto* to = blocks.mutable_data_ptr<uint8_t>();
  bool finite = true;
  for (int64_t block = 0; block < floats.numel() / kQ8BlockSize; ++block)
    finite &= encode_block(from + block * kQ8BlockSize, to + block * kQ8BlockBytes);
  check_finite(name, finite);
  return blocks;
}

}  // namespace

at::Tensor gguf_encode(const std::string& name, const at::Tensor& values, GgufType type) {
  const at::Tensor numbers = values.to(at::kCPU, dtype_of(type)).contiguous();
  check_finite(name, at::isfinite(numbers).all().item<bool>());
  return type == GgufType::kQ8_0 ? encode_q8(name, numbers) : numbers;
}

}  // namespace retort::models
