#include "launch/run_folder/run_mark.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace {

[[noreturn]] void refuse_mark(const std::filesystem::path& file, const std::string& why) {
  throw Error(ErrorCode::kUnavailable, file.string() + ": " + why);
}

// True while the name is still that of the open file.
bool is_named(const OwnedFd& fd, const std::filesystem::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(fd.get(), &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// Opens the mark and locks it. Returns nothing if somebody has removed the file meanwhile, because
// the lock then is of a file that nobody else can find.
OwnedFd lock_mark(const std::filesystem::path& file, const Deadline& deadline) {
  OwnedFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (fd.get() < 0) refuse_mark(file, std::strerror(errno));
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      refuse_mark(file, std::string("cannot be locked: ") + std::strerror(errno));
    if (deadline.expired())
      refuse_mark(
          file,
          "processes of an earlier start still run on a host; wait for them to end, or, "
          "where the run goes on without its launcher, take it over: retort launch --attach");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return is_named(fd, file) ? std::move(fd) : OwnedFd();
}

}  // namespace

std::string make_run_mark(const std::filesystem::path& run_folder, Duration timeout) {
  const auto file = run_folder / kRunMark;
  const Deadline deadline = Deadline::after(timeout);
  OwnedFd fd = lock_mark(file, deadline);
  // A mark that was removed before it was locked is made anew.
  while (fd.get() < 0)
    fd = lock_mark(file, deadline);
  // Written in place: a renamed file would be another one than that which is held.
  const std::string text = random_hex(16);
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    refuse_mark(file, std::string("cannot be written: ") + std::strerror(errno));
  return text;
}

void wait_for_hosts(const std::filesystem::path& run_folder, const Deadline& deadline) {
  const auto file = run_folder / kRunMark;
  if (std::filesystem::exists(file)) lock_mark(file, deadline);
}

RunMark read_run_mark(const std::filesystem::path& run_folder) {
  const auto file = run_folder / kRunMark;
  RunMark mark{.text = {}, .hold = OwnedFd(::open(file.c_str(), O_RDWR | O_CLOEXEC))};
  if (mark.hold.get() < 0) refuse_mark(file, std::strerror(errno));
  // Hosts share the lock, so this waits at most for a launcher that writes at this moment.
  int locked = -1;
  do {
    locked = ::flock(mark.hold.get(), LOCK_SH);
  } while (locked != 0 && errno == EINTR);
  if (locked != 0) refuse_mark(file, std::string("cannot be locked: ") + std::strerror(errno));
  std::array<char, 256> bytes;
  const ssize_t got = ::read(mark.hold.get(), bytes.data(), bytes.size());
  if (got < 0) refuse_mark(file, std::strerror(errno));
  mark.text.assign(bytes.data(), static_cast<size_t>(got));
  return mark;
}

void remove_run_mark(const std::filesystem::path& run_folder, const std::string& text) {
  // Locked, so that nobody writes another one meanwhile; who waits to do so makes a new file.
  const RunMark mark = read_run_mark(run_folder);
  if (mark.text == text) std::filesystem::remove(run_folder / kRunMark);
}

}  // namespace retort::launch
