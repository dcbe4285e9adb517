// One safetensors file, mapped, whose bytes are compared with their checksums before anybody gets
// them. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/file.h"
#include "models/safetensors/file_checksums.h"
#include "models/safetensors/header.h"

namespace retort::models {

// Bytes [begin, end) are those of the file. Errors: damage() of the file, if it is one of a
// checkpoint that has checksums; kCorrupt for a header that lies.
// Threads: any; several of LibTorch take part in check(), copy() and convert().
struct SafetensorsShard {
  explicit SafetensorsShard(const std::filesystem::path& path);

  void check(uint64_t begin, uint64_t end) const;
  // Copies them, and compares each MiB while the thread that copies it has it in its cache. After
  // an error some of `to` has been written.
  void copy(uint64_t begin, uint64_t end, std::byte* to, CopyTo kind) const;
  // The same by LibTorch, for elements of `dtype`, which fill the contiguous tensor `to`.
  void convert(at::ScalarType dtype, uint64_t begin, uint64_t end, const at::Tensor& to) const;
  // A tensor that keeps the file mapped, or a copy where they are not aligned. Compares nothing.
  at::Tensor view(at::ScalarType dtype, const std::vector<int64_t>& shape, uint64_t begin,
                  uint64_t end) const;

  std::shared_ptr<MappedFile> file;
  std::unique_ptr<BlockCheck> saved;  // null: it has no checksums
  SafetensorsHeader header;

 private:
  void check_header() const;
};

}  // namespace retort::models
