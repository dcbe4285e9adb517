// Files that are never half there: write to a temporary name, sync, rename. And read-only memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace retort {

// The whole file. kInvalidArgument if it cannot be opened, naming the path.
std::string read_file(const std::filesystem::path& path);

// Writes `path` so that after a crash either the old or the new content is there. kResourceExhausted when the disk is
// full, kUnavailable on any other failure; the temporary file is removed.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// A new file written in pieces under a temporary name in the same folder; commit() syncs and renames it to `path`,
// destruction without commit() removes it. Errors as write_file_atomically.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  uint64_t size_bytes() const { return size_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Makes a folder durable as one step: `fill(temporary)` writes into `<path>.tmp-<pid>`, then every file and the folder
// are synced and the folder is renamed to `path` (an existing `path` is replaced). On any error the temporary folder is
// removed and the old `path` is untouched.
void write_folder_atomically(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& fill);

// A file mapped read-only for as long as the object lives.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace retort
