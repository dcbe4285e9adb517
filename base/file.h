// Files that are never half there: they are written under a temporary name, synced and renamed.
// Also memory maps that are read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace retort {

// A descriptor that reads a regular file, which the caller closes. kInvalidArgument, naming the
// path, if it cannot be opened or is a pipe, a socket, a device or a folder: such a thing may hold
// up whoever reads it, or have no end. kUnavailable if it is there and cannot be read now (a broken
// disk, a server that is gone). Nobody is waited for.
int open_regular_file(const std::filesystem::path& path);

// The whole file. Errors as open_regular_file.
std::string read_file(const std::filesystem::path& path);
// nullopt: there is no such file. kUnavailable for anything else, naming the path.
std::optional<std::string> read_file_if_there(const std::filesystem::path& path);
// What can be read of a file, of /proc too, that may go away meanwhile; empty if nothing can. For
// words and comparisons that do without.
std::string read_what_is_there(const std::filesystem::path& path);
// True if there is a regular file. kUnavailable, naming the path, if nobody can say.
bool is_file_there(const std::filesystem::path& path);

// What the name of a file that is not complete ends in: ".tmp-<pid>-<random>", another one at each
// call and on every host that sees the folder.
std::string temporary_suffix();

// Writes `path` so that after a crash either the old or the new content is there.
// kResourceExhausted when the disk is full, kUnavailable on any other failure; the temporary file
// is removed.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// The same for readers, without waiting for the disk: a reader sees the old or the new content, but
// after a crash of the machine it may find neither. For what is written again soon.
void replace_file(const std::filesystem::path& path, std::string_view content);

// A new file written in pieces under a temporary name in the same folder; commit() syncs and
// renames it to `path`, destruction without commit() removes it. Errors as write_file_atomically.
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
  void commit_unsynced();  // see replace_file

 private:
  void take_place();

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// A new folder under a temporary name beside `path`, `<path>.tmp-...`, which any process may fill;
// commit() syncs every file and folder in it and renames it to `path` (an existing `path` is
// replaced: the two change places, so that one of them is always there, but on file systems that
// cannot do so), destruction without commit() removes it. The old `path` is untouched until then.
// Errors as write_file_atomically.
class AtomicFolder {
 public:
  explicit AtomicFolder(std::filesystem::path path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path take_folder_place() const;

  std::filesystem::path path_, temporary_;
  bool committed_ = false;
};

// The same in one call: `fill(temporary)` writes into the temporary folder. On any error it is
// removed.
void write_folder_atomically(const std::filesystem::path& path,
                             const std::function<void(const std::filesystem::path&)>& fill);

// A new file of `size_bytes` bytes that begins with `head`; the rest is reserved on the disk and
// reads as zeros until SharedFile writes it. kResourceExhausted when there is no room for all of
// it, kUnavailable on any other failure; then no file is left.
void reserve_file(const std::filesystem::path& path, std::string_view head, uint64_t size_bytes);

// One of several writers of an existing file, in one process or in several. Each writes at places
// of its own; writers on several hosts do so in turns (base/write_turn.h). Errors as
// write_file_atomically, but what was written stays.
class SharedFile {
 public:
  explicit SharedFile(std::filesystem::path path);
  ~SharedFile();
  SharedFile(SharedFile&&) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;
  void write(uint64_t offset, std::span<const std::byte> bytes);
  void sync();  // when it returns, what this writer wrote is on the disk

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Renames a file and makes that durable; an existing `to` is replaced. Errors as
// write_file_atomically.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

// A file mapped read-only for as long as the object lives. Errors as open_regular_file.
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
