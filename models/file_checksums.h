// Checksums of the files of a checkpoint. They stand in it, in the file that says that it is
// complete, and are compared where the files are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace retort {
class MappedFile;
}  // namespace retort

namespace retort::models {

// Of one file: a sum for each block, so that who reads a part of it compares that part.
struct FileChecksum {
  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

  explicit FileChecksum(uint64_t file_bytes);
  // Bytes that are written at `offset`, each once, by whoever writes them; others are 0.
  void add(std::span<const std::byte> bytes, uint64_t offset);
  bool operator==(const FileChecksum&) const = default;

  uint64_t bytes = 0;
  std::vector<uint64_t> blocks;  // placed_checksum64
};

// By their path in the checkpoint: "model.safetensors", "state/loop.json".
using FileChecksums = std::map<std::string, FileChecksum>;

// The file of a checkpoint that comes last, and says that all others are there.
inline constexpr const char* kCompleteFile = "state/COMPLETE";

// The text of that file. Format 1: one line of JSON, {"format": 1, "checksum": that of "files",
// "files": {name: {"bytes": n, "blocks": [16 hexadecimal digits each]}}}.
std::string write_checksums(const FileChecksums& files);
// Of a checkpoint; nullopt: there is no such file, or it is one of before there were checksums,
// which says "complete". kCorrupt naming the file if it is neither; kMismatch for a later format.
std::optional<FileChecksums> read_checksums(const std::filesystem::path& checkpoint);

// Of a file as it is read now. kUnavailable if it cannot be read.
FileChecksum checksum_of_file(const std::filesystem::path& file);

// That a file is not what was saved: kCorrupt, which is_damage() knows again.
Error damage(const std::filesystem::path& file, const std::string& what);
bool is_damage(const Error& error);

// Compares what is read of a mapped file with what was saved, each block once.
// Threads: any.
class BlockCheck {
 public:
  // Null: the file is none of a checkpoint that has checksums, or none of those that it was saved
  // with. Errors: of read_checksums; damage() for a file of another size.
  static std::unique_ptr<BlockCheck> of(const MappedFile& file);

  BlockCheck(const MappedFile& file, FileChecksum saved);
  // The blocks that have bytes [begin, end) of the file. Several threads of LibTorch take part.
  // Errors: damage() naming the first block that is not as it was saved.
  void check(uint64_t begin, uint64_t end);

 private:
  const MappedFile& file_;
  const FileChecksum saved_;
  std::mutex mutex_;
  std::vector<bool> known_;  // blocks that were compared, and found right
};

// Compares files of a checkpoint as a whole, and that all are there in their size; but for that the
// tensors of .safetensors files are not read, which their reader does. False: it has no checksums.
// Errors: of read_checksums; damage().
bool check_small_files(const std::filesystem::path& checkpoint);

}  // namespace retort::models
