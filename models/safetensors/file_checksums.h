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
#include "base/placed_checksum.h"

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
// which says "complete", or nothing. kCorrupt naming the file if it is neither; kMismatch for a
// later format; kUnavailable if it cannot be read.
std::optional<FileChecksums> read_checksums(const std::filesystem::path& checkpoint);

// Computes the checksum of a file as it is read now. kUnavailable if it cannot be read.
FileChecksum checksum_of_file(const std::filesystem::path& file);

// That a file is not what was saved: kCorrupt, which is_damage() knows again.
Error damage(const std::filesystem::path& file, const std::string& what);
bool is_damage(const Error& error);

// Compares what is read of a mapped file with what was saved, each block once, but for those that
// are copied.
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
  // One block, in this thread. damage() of it.
  void check_block(uint64_t block);
  // Copies a block of kBlockBytes to `to`, and compares it in the same pass over its bytes: after
  // an error they have been written.
  void copy_block(uint64_t block, std::byte* to, CopyTo kind);

 private:
  std::span<const std::byte> bytes_of(uint64_t block) const;
  bool knows(uint64_t block) const;
  // True when a block with this checksum is right; remembers that it is.
  bool compare(uint64_t block, uint64_t checksum);

  const MappedFile& file_;
  const FileChecksum saved_;
  mutable std::mutex mutex_;
  std::vector<bool> known_;  // blocks that were compared, and found right
};

// What was found of a checkpoint that is whole as far as a run needs it to go on.
struct SmallFiles {
  bool has_checksums = true;
  // Sentences that name files which are not what was saved, and that people and programs change on
  // purpose: config.json, the tokenizer's, the chat template.
  std::vector<std::string> changed;
};

// Compares the files of a checkpoint that a run goes on from: of state/ as a whole, and that those
// of tensors have their size, whose elements their reader compares. config.json and that of an
// adapter must be JSON.
// Errors: of read_checksums; damage() for a file that is not there or differs, and no other reason;
// kUnavailable for one that cannot be read.
SmallFiles check_small_files(const std::filesystem::path& checkpoint);

// True when the damage that `message` of a process tells, with the path of a file of this
// checkpoint, is there when the file is read again: a host's memory or network may have been at
// fault. Reads the bytes that the message names, else the whole file. True also where nothing can
// be compared. kUnavailable if the file cannot be read.
bool is_still_damaged(const std::filesystem::path& checkpoint, const std::string& message);

}  // namespace retort::models
