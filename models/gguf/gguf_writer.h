// GGUF files, version 3: metadata, then tensors, each at a multiple of 32 bytes. Little-endian.
// Private to models/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace retort::models {

// How the numbers of a tensor are stored; the values are the format's own.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ8_0 = 8,  // blocks of 32 numbers of a row: an f16 scale, then an int8 for each
  kBF16 = 30,
};
constexpr int64_t kQ8BlockSize = 32;   // numbers
constexpr int64_t kQ8BlockBytes = 34;  // 2 of the scale, 32 of the numbers

// Keys and values in the order of the calls. The keys are the caller's to keep distinct.
class GgufMetadata {
 public:
  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, std::span<const std::string> values);
  void add(std::string_view key, std::span<const int32_t> values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }  // as they stand in the file

 private:
  std::string bytes_;
  uint64_t count_ = 0;
};

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // as LibTorch's, rows first; the file has it reversed

  uint64_t num_bytes() const;
};

// One file, written from front to back and there only when it is complete (base/file.h).
// Use: the constructor writes metadata and the list of tensors; then write() once for each tensor,
// in that order; then commit(). Threads: one at a time.
// Memory: metadata and names; no tensor is kept.
// Errors: as AtomicFile. A wrong order or size is a bug.
class GgufWriter {
 public:
  GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata,
             std::vector<GgufTensor> tensors);
  void write(const std::string& name, std::span<const std::byte> bytes);
  void commit();
  uint64_t size_bytes() const { return file_.size_bytes(); }

 private:
  void pad();

  AtomicFile file_;
  std::vector<GgufTensor> tensors_;
  size_t next_ = 0;
};

}  // namespace retort::models
