#include "launch/backends/frame_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace retort::launch {
namespace {

constexpr size_t kMaxBuffered = 1 << 20;

bool later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

FrameStream::FrameStream(OwnedFd in, OwnedFd out) : in_(std::move(in)), out_(std::move(out)) {
  for (const int fd : {in_.get(), out_.get()})
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool FrameStream::fill() {
  std::array<char, 65536> bytes;
  while (received_.size() < kMaxBuffered) {
    const ssize_t got = ::read(in_.get(), bytes.data(), bytes.size());
    if (got == 0) return false;
    if (got < 0) return later(errno);
    received_.append(bytes.data(), static_cast<size_t>(got));
  }
  return true;
}

std::optional<std::string> FrameStream::line(std::string_view beginning) {
  for (;;) {
    const size_t end = received_.find('\n');
    if (end == std::string::npos && received_.size() > kMaxFrameBytes)
      throw Error(ErrorCode::kCorrupt, "what comes over the connection is not retort's");
    if (end == std::string::npos) return std::nullopt;
    const std::string text = received_.substr(0, end);
    received_.erase(0, end + 1);
    if (text.starts_with(beginning)) return text;
  }
}

std::optional<std::string> FrameStream::next() {
  uint32_t size = 0;
  if (received_.size() < sizeof size) return std::nullopt;
  std::memcpy(&size, received_.data(), sizeof size);
  if (size > kMaxFrameBytes)
    throw Error(ErrorCode::kCorrupt, "a frame of " + std::to_string(size) + " bytes is announced");
  if (received_.size() < sizeof size + size) return std::nullopt;
  std::string frame = received_.substr(sizeof size, size);
  received_.erase(0, sizeof size + size);
  return frame;
}

void FrameStream::send_line(std::string_view text) {
  unsent_ += text;
  unsent_ += '\n';
}

void FrameStream::send(std::string_view frame) {
  RETORT_CHECK(frame.size() <= kMaxFrameBytes) << "a frame of " << frame.size() << " bytes";
  const auto size = static_cast<uint32_t>(frame.size());
  unsent_.append(reinterpret_cast<const char*>(&size), sizeof size);
  unsent_ += frame;
}

bool FrameStream::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::write(out_.get(), unsent_.data(), unsent_.size());
    if (sent < 0) return later(errno);
    unsent_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace retort::launch
