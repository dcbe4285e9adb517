// Files for people to read: a full disk does not end the run that writes them. What cannot be
// written waits in memory, and is there once the disk has room again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

namespace retort::recipes {

inline constexpr size_t kMaxWaitingBytes = size_t{64} << 20;

// A file that records (rows, events) are appended to, each whole and in order.
// Threads: one at a time. Errors: kUnavailable naming the file for anything but a full disk;
// kResourceExhausted once more than `max_waiting` bytes wait.
class PatientFile {
 public:
  // Opens it for appending, creating it.
  explicit PatientFile(std::filesystem::path path, size_t max_waiting = kMaxWaitingBytes);
  ~PatientFile();  // tries once more; what is not written then is lost, with a warning
  PatientFile(const PatientFile&) = delete;
  PatientFile& operator=(const PatientFile&) = delete;

  // In one write(2), so that a reader never sees half of it, unless the system splits that.
  void append(std::string record);
  // Writes what there is room for. Whether nothing waits any more.
  bool flush();
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }  // records
  const std::filesystem::path& path() const { return path_; }

 private:
  bool put(const std::string& record);

  std::filesystem::path path_;
  const size_t max_waiting_;
  int fd_ = -1;
  std::deque<std::string> waiting_;
  size_t waiting_bytes_ = 0;
};

// Whole files, each written atomically; the folders that they lie in are made.
// Threads and errors as PatientFile.
class PatientFiles {
 public:
  explicit PatientFiles(size_t max_waiting = kMaxWaitingBytes) : max_waiting_(max_waiting) {}
  ~PatientFiles();  // as PatientFile's
  PatientFiles(const PatientFiles&) = delete;
  PatientFiles& operator=(const PatientFiles&) = delete;

  void write(std::filesystem::path path, std::string text);
  bool flush();
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }  // files

 private:
  struct Waiting {
    std::filesystem::path path;
    std::string text;
  };
  const size_t max_waiting_;
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace retort::recipes
