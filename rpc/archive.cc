#include "rpc/archive.h"

#include <cstring>

#include "rpc/detail/tensor_format.h"

namespace retort::rpc {
namespace {

int one_deeper(int depth, ErrorCode code) {
  if (depth >= kMaxNesting)
    throw Error(code, "values are nested too deeply to travel").with("max", kMaxNesting);
  return depth + 1;
}

}  // namespace

void OutputArchive::enter() { depth_ = one_deeper(depth_, ErrorCode::kInvalidArgument); }
void InputArchive::enter() { depth_ = one_deeper(depth_, ErrorCode::kCorrupt); }

void OutputArchive::append(const void* data, size_t size) {
  message_.envelope.append(static_cast<const char*>(data), size);
}

void OutputArchive::append_tensor(const at::Tensor& tensor) {
  append<uint8_t>(tensor.defined() ? 1 : 0);
  if (!tensor.defined()) return;
  at::Tensor plain = detail::dense(tensor);
  if (place_ == detail::TensorPlace::kOutOfBand) {
    message_.tensors.push_back(std::move(plain));
    return;
  }
  if (!plain.is_cpu())
    throw Error(ErrorCode::kInvalidArgument, "only CPU tensors go inside bytes; call .cpu() first")
        .with("device", plain.device().str());
  message_.envelope += detail::format_of(plain).to_bytes();
  append(plain.const_data_ptr(), plain.nbytes());
}

void InputArchive::corrupt(const char* what) {
  throw Error(ErrorCode::kCorrupt, std::string("bad bytes: ") + what);
}

void InputArchive::finish() const {
  if (!rest_.empty()) corrupt("bytes are left over");
  if (tensors_ && next_tensor_ != tensors_->size()) corrupt("tensors are left over");
}

void InputArchive::take(void* data, size_t size) {
  if (size > rest_.size()) corrupt("they end too early");
  if (size > 0) std::memcpy(data, rest_.data(), size);
  rest_.remove_prefix(size);
}

uint64_t InputArchive::take_size(size_t bytes_per_element) {
  uint64_t size = 0;
  take(&size, sizeof size);
  // A size that is not backed by bytes would have memory allocated for nothing.
  if (size > rest_.size() / bytes_per_element) corrupt("a size is larger than what follows");
  return size;
}

bool InputArchive::take_flag() {
  uint8_t flag = 0;
  take(&flag, sizeof flag);
  if (flag > 1) corrupt("a bool is neither 0 nor 1");
  return flag == 1;
}

at::Tensor InputArchive::take_tensor() {
  if (!take_flag()) return {};
  if (tensors_) {
    if (next_tensor_ >= tensors_->size()) corrupt("a tensor is missing");
    return std::move((*tensors_)[next_tensor_++]);
  }
  const auto format = detail::TensorFormat::take(rest_);
  if (format.size_bytes() > rest_.size()) corrupt("a tensor is larger than what follows");
  at::Tensor tensor = format.allocate();
  take(tensor.mutable_data_ptr(), format.size_bytes());
  return tensor;
}

}  // namespace retort::rpc
