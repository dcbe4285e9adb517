#include "rpc/detail/tensor_format.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"

namespace retort::rpc::detail {
namespace {

using Type = at::ScalarType;
// The code on the wire is the position here: append only.
constexpr std::array kTypes{
    Type::Byte,          Type::Char,       Type::Short,  Type::Int,          Type::Long,
    Type::Half,          Type::Float,      Type::Double, Type::Bool,         Type::BFloat16,
    Type::UInt16,        Type::UInt32,     Type::UInt64, Type::ComplexFloat, Type::ComplexDouble,
    Type::Float8_e4m3fn, Type::Float8_e5m2};

uint8_t take_byte(std::string_view& bytes) {
  if (bytes.empty()) throw Error(ErrorCode::kCorrupt, "a tensor's format ends too early");
  const auto byte = static_cast<uint8_t>(bytes.front());
  bytes.remove_prefix(1);
  return byte;
}

}  // namespace

std::string TensorFormat::to_bytes() const {
  const auto code = std::find(kTypes.begin(), kTypes.end(), dtype) - kTypes.begin();
  std::string bytes;
  bytes += static_cast<char>(code);
  bytes += static_cast<char>(sizes.size());
  bytes.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
  return bytes;
}

TensorFormat TensorFormat::take(std::string_view& bytes) {
  TensorFormat format;

  // The fields come as to_bytes() writes them: dtype, number of dims, dims.
  const uint8_t code = take_byte(bytes);
  if (code >= kTypes.size())
    throw Error(ErrorCode::kCorrupt, "a tensor has an unknown dtype").with("code", int{code});
  format.dtype = kTypes[code];
  const uint8_t dims = take_byte(bytes);
  if (dims > kMaxDims || bytes.size() < dims * sizeof(int64_t))
    throw Error(ErrorCode::kCorrupt, "a tensor's number of dims cannot be").with("dims", int{dims});
  format.sizes.resize(dims);
  if (dims > 0) std::memcpy(format.sizes.data(), bytes.data(), dims * sizeof(int64_t));
  bytes.remove_prefix(dims * sizeof(int64_t));

  // The size in bytes must fit an int64.
  uint64_t product = c10::elementSize(format.dtype);
  bool empty = false;
  for (int64_t size : format.sizes) {
    if (size < 0)
      throw Error(ErrorCode::kCorrupt, "a tensor has a negative dim").with("size", size);
    empty = empty || size == 0;
    // Strides are computed even for empty tensors, so the product of the others must fit as well.
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    if (product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / factor)
      throw Error(ErrorCode::kCorrupt, "a tensor's size in bytes overflows");
    product *= factor;
  }
  return format;
}

uint64_t TensorFormat::size_bytes() const {
  uint64_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes)
    bytes *= static_cast<uint64_t>(size);
  return bytes;
}

at::Tensor TensorFormat::allocate() const {
  c10::InferenceMode ordinary(false);
  return at::empty(sizes, at::TensorOptions().dtype(dtype));
}

at::Tensor dense(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested())
    throw Error(ErrorCode::kInvalidArgument, "only dense tensors travel; call to_dense() first");
  if (std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type()) == kTypes.end())
    throw Error(ErrorCode::kInvalidArgument, "a tensor of this dtype does not travel; convert it")
        .with("dtype", c10::toString(tensor.scalar_type()));
  if (static_cast<size_t>(tensor.dim()) > kMaxDims)
    throw Error(ErrorCode::kInvalidArgument, "a tensor has too many dims to travel; reshape it")
        .with("dims", tensor.dim())
        .with("max", kMaxDims);
  at::NoGradGuard no_grad;
  at::Tensor plain = tensor.requires_grad() ? tensor.detach() : tensor;
  // Conjugation and negation may be mere flags of a view, which the bytes would not carry.
  if (plain.is_conj()) plain = plain.resolve_conj();
  if (plain.is_neg()) plain = plain.resolve_neg();
  return plain.contiguous();
}

TensorFormat format_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec()};
}

}  // namespace retort::rpc::detail
