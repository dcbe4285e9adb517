#include "launch/ssh/frame_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace {

constexpr size_t kMaxBuffered = 1 << 20;

bool later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

FrameStream::FrameStream(OwnedFd in, OwnedFd out) : in_(std::move(in)), out_(std::move(out)) {
  for (const int fd : {in_.get(), out_.get()})
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Bytes that were taken are erased when they are at least half of all. So no more bytes are moved
// than were taken, and each byte a bounded number of times.
void FrameStream::Bytes::take(size_t count) {
  taken_ += count;
  if (taken_ < bytes_.size() - taken_) return;
  bytes_.erase(0, taken_);
  taken_ = 0;
}

bool FrameStream::fill() {
  std::array<char, 65536> bytes;
  // Beyond this bound the sender waits in the pipe, so that it cannot fill this process's memory.
  while (received_.rest().size() < kMaxBuffered) {
    const ssize_t got = ::read(in_.get(), bytes.data(), bytes.size());
    if (got == 0) return false;
    if (got < 0) return later(errno);
    received_.add({bytes.data(), static_cast<size_t>(got)});
  }
  return true;
}

std::optional<std::string> FrameStream::line(std::string_view beginning) {
  for (;;) {
    const std::string_view rest = received_.rest();
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos && rest.size() > kMaxFrameBytes)
      throw Error(ErrorCode::kCorrupt, "what comes over the connection is not retort's");
    if (end == std::string_view::npos) return std::nullopt;
    const std::string text(rest.substr(0, end));
    received_.take(end + 1);
    if (text.starts_with(beginning)) return text;
  }
}

std::optional<std::string> FrameStream::next() {
  const std::string_view rest = received_.rest();
  uint32_t size = 0;
  if (rest.size() < sizeof size) return std::nullopt;
  std::memcpy(&size, rest.data(), sizeof size);
  // The size is not trusted: bytes that are no frame could announce one that never comes.
  if (size > kMaxFrameBytes)
    throw Error(ErrorCode::kCorrupt, "a frame of " + std::to_string(size) + " bytes is announced");
  if (rest.size() < sizeof size + size) return std::nullopt;
  std::string frame(rest.substr(sizeof size, size));
  received_.take(sizeof size + size);
  return frame;
}

void FrameStream::send_line(std::string_view text) {
  unsent_.add(text);
  unsent_.add("\n");
}

void FrameStream::send(std::string_view frame) {
  RETORT_CHECK(frame.size() <= kMaxFrameBytes) << "a frame of " << frame.size() << " bytes";
  const auto size = static_cast<uint32_t>(frame.size());
  unsent_.add({reinterpret_cast<const char*>(&size), sizeof size});
  unsent_.add(frame);
}

bool FrameStream::flush() {
  while (unsent() > 0) {
    const std::string_view rest = unsent_.rest();
    const ssize_t sent = ::write(out_.get(), rest.data(), rest.size());
    if (sent < 0) return later(errno);
    unsent_.take(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace retort::launch
