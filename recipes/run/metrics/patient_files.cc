#include "recipes/run/metrics/patient_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "base/append_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

// Returns true if `write` succeeded, false if the disk is full. Other errors pass.
template <class Write>
bool has_room_for(Write&& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    return false;
  }
}

void check_waiting(size_t bytes, size_t limit, const fs::path& path) {
  if (bytes <= limit) return;
  throw Error(ErrorCode::kResourceExhausted, path.string() + ": " + std::to_string(bytes) +
                                                 " bytes wait for room on a full disk, at most " +
                                                 std::to_string(limit) +
                                                 " may (free space on this disk)");
}

void tell_lost(int64_t count, const std::string& what, const fs::path& path) {
  if (count == 0) return;
  RETORT_LOG(kWarning) << "the disk is full: " << count << " " << what << " of " << path.string()
                       << " were not written";
}

// Makes a last attempt in a destructor, which may not throw.
template <class Flush>
void try_last(Flush&& flush) noexcept {
  try {
    flush();
  } catch (const std::exception& e) {
    RETORT_LOG(kWarning) << e.what();
  }
}

void make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (!failed) return;
  const bool full = failed == std::errc::no_space_on_device ||
                    failed == std::error_code(EDQUOT, std::generic_category());
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              "cannot create folder " + folder.string() + ": " + failed.message());
}

}  // namespace

PatientFile::PatientFile(fs::path path, size_t max_waiting)
    : path_(std::move(path)), max_waiting_(max_waiting), fd_(open_for_append(path_)) {}

PatientFile::~PatientFile() {
  try_last([&] { flush(); });
  tell_lost(num_waiting(), "records", path_);
  ::close(fd_);
}

// Returns false when there is no room for all of the record. Then nothing of it stays, because the
// next try would append it behind its own beginning.
bool PatientFile::put(const std::string& record) {
  struct stat before {};
  const bool known = ::fstat(fd_, &before) == 0 && S_ISREG(before.st_mode);
  if (has_room_for([&] { append_bytes(fd_, record, path_); })) return true;

  // Nobody else appends, so what is beyond the old end is the part that the disk still had room
  // for.
  struct stat after {};
  if (known && ::fstat(fd_, &after) == 0 && after.st_size > before.st_size &&
      ::ftruncate(fd_, before.st_size) != 0)
    throw Error(ErrorCode::kUnavailable, "cannot take back half a record of " + path_.string());
  return false;
}

bool PatientFile::flush() {
  while (!waiting_.empty()) {
    if (!put(waiting_.front())) return false;
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  return true;
}

void PatientFile::append(std::string record) {
  // What waits goes first, so that records stay in their order.
  if (flush() && put(record)) return;
  waiting_bytes_ += record.size();
  waiting_.push_back(std::move(record));
  check_waiting(waiting_bytes_, max_waiting_, path_);
}

PatientFiles::~PatientFiles() {
  try_last([&] { flush(); });
  if (!waiting_.empty()) tell_lost(num_waiting(), "files", waiting_.front().path.parent_path());
}

bool PatientFiles::flush() {
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    const bool written = has_room_for([&] {
      make_folder(first.path.parent_path());
      write_file_atomically(first.path, first.text);
    });
    if (!written) return false;
    waiting_bytes_ -= first.text.size();
    waiting_.pop_front();
  }
  return true;
}

void PatientFiles::write(fs::path path, std::string text) {
  const bool had_room = waiting_.empty();
  waiting_bytes_ += text.size();
  waiting_.push_back({std::move(path), std::move(text)});
  if (flush()) return;
  const fs::path& first = waiting_.front().path;
  if (had_room) {
    RETORT_LOG(kWarning) << "the disk is full: " << first.string()
                         << " waits in memory, and what follows it";
  }
  check_waiting(waiting_bytes_, max_waiting_, first);
}

}  // namespace retort::recipes
