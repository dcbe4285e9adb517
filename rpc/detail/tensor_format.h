// What a tensor is on the wire: dtype and shape in a few bytes, checked before memory is allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace retort::rpc::detail {

inline constexpr size_t kMaxDims = 16;

struct TensorFormat {
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> sizes;

  // dtype code (1 byte), number of dims (1 byte), dims (8 bytes each).
  std::string to_bytes() const;
  // Reads a format at the start of `bytes` and removes it. kCorrupt: unknown dtype, too many or
  // negative dims, too short, or a size in bytes that overflows.
  static TensorFormat take(std::string_view& bytes);
  uint64_t size_bytes() const;
  // uninitialised, on the CPU, an ordinary tensor even under InferenceMode
  at::Tensor allocate() const;
};

// The dense form of `tensor`, without autograd history; shares memory if it is dense already.
// kInvalidArgument for layouts and dtypes that do not travel.
at::Tensor dense(const at::Tensor& tensor);
TensorFormat format_of(const at::Tensor& tensor);

}  // namespace retort::rpc::detail
