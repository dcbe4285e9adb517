#include "models/safetensors/shard.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "base/sizes.h"

namespace retort::models {
namespace {

constexpr uint64_t kBlock = FileChecksum::kBlockBytes;

// Cuts bytes [begin, end) of a file at the borders of its blocks, and shares the parts out over the
// threads of LibTorch, each some that follow one another: visit(block, begin, end).
template <class Visit>
void for_blocks(uint64_t begin, uint64_t end, const Visit& visit) {
  if (begin >= end) return;
  const uint64_t past = (end + kBlock - 1) / kBlock;
  at::parallel_for(to_int64(begin / kBlock), to_int64(past), 1, [&](int64_t first, int64_t last) {
    for (auto block = static_cast<uint64_t>(first); block < static_cast<uint64_t>(last); ++block)
      visit(block, std::max(begin, block * kBlock), std::min(end, (block + 1) * kBlock));
  });
}

}  // namespace

SafetensorsShard::SafetensorsShard(const std::filesystem::path& path)
    : file(std::make_shared<MappedFile>(path)), saved(BlockCheck::of(*file)) {
  check_header();
  header = parse_safetensors_header(file->text(), path);
}

// The length is checked first, because it says what else belongs to the header.
void SafetensorsShard::check_header() const {
  check(0, sizeof(uint64_t));
  uint64_t length = 0;
  if (file->bytes().size() < sizeof length) return;
  std::memcpy(&length, file->bytes().data(), sizeof length);
  check(0, sizeof length + std::min<uint64_t>(length, file->bytes().size()));
}

void SafetensorsShard::check(uint64_t begin, uint64_t end) const {
  if (saved && begin < end) saved->check(begin, end);
}

// A block of which only some bytes are asked for must be compared as a whole before they are
// copied.
void SafetensorsShard::copy(uint64_t begin, uint64_t end, std::byte* to, CopyTo kind) const {
  for_blocks(begin, end, [&](uint64_t block, uint64_t from, uint64_t until) {
    const bool whole = from == block * kBlock && until == from + kBlock;
    if (saved && whole) return saved->copy_block(block, to + (from - begin), kind);
    if (saved) saved->check_block(block);
    std::memcpy(to + (from - begin), file->bytes().data() + from, until - from);
  });
}

void SafetensorsShard::convert(at::ScalarType dtype, uint64_t begin, uint64_t end,
                               const at::Tensor& to) const {
  const at::Tensor flat = to.view({-1});
  const uint64_t size = c10::elementSize(dtype);
  // Where an element may lie across the border of two blocks, the whole range is checked first.
  if (begin % size != 0) {
    check(begin, end);
    flat.copy_(view(dtype, {flat.numel()}, begin, end));
    return;
  }

  for_blocks(begin, end, [&](uint64_t block, uint64_t from, uint64_t until) {
    if (saved) saved->check_block(block);
    const at::NoGradGuard no_grad;
    const int64_t count = to_int64((until - from) / size);
    flat.narrow(0, to_int64((from - begin) / size), count).copy_(view(dtype, {count}, from, until));
  });
}

at::Tensor SafetensorsShard::view(at::ScalarType dtype, const std::vector<int64_t>& shape,
                                  uint64_t begin, uint64_t end) const {
  const auto options = at::TensorOptions().dtype(dtype);
  const std::byte* data = file->bytes().data() + begin;
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) != 0) {
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, end - begin);
    return copy;
  }
  // The mapping is read-only; at::from_blob has no const overload.
  return at::from_blob(
      const_cast<std::byte*>(data), shape, [file = file](void*) {}, options);
}

}  // namespace retort::models
