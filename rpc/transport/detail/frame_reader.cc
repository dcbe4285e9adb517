#include "rpc/transport/detail/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace retort::rpc::transport {
namespace {

constexpr size_t kBufferBytes = 16 << 10;
constexpr size_t kDirectBytes = 8 << 10;  // from here on bytes skip the buffer

}  // namespace

FrameReader::FrameReader(const FrameLimits& limits) : limits_(limits), buffer_(kBufferBytes) {}

// Checks the length in the header against what the read at the head accepts.
bool FrameReader::begin_body() {
  const ReadOperation& read = waiting_.front();
  uint64_t length = 0;
  std::memcpy(&length, buffer_.data() + begin_, sizeof length);
  // The length is the peer's word, so it is checked before anything is allocated or moved.
  if (read.sized && length != read.length) {
    problem_ = "a frame has another length than the one that was announced";
    return false;
  }
  if (!read.sized && length > limits_.max_unsized_bytes) {
    problem_ = "a frame is longer than allowed";
    return false;
  }
  if (read.object != nullptr && length == 0) {
    problem_ = "an object has no bytes";
    return false;
  }

  begin_ += kFrameHeaderBytes;
  in_body_ = true;
  body_bytes_ = length;
  body_have_ = 0;
  // An unsized frame that is here already is used where it lies.
  if (!read.sized && buffered() < body_bytes_)
    owned_body_ = std::make_unique_for_overwrite<char[]>(body_bytes_);
  return true;
}

void FrameReader::skip_probes() {
  while (!in_body_ && buffered() >= kFrameHeaderBytes &&
         std::memcmp(buffer_.data() + begin_, &kProbeHeader, kFrameHeaderBytes) == 0)
    begin_ += kFrameHeaderBytes;
}

FrameReader::Progress FrameReader::serve() {
  skip_probes();
  if (waiting_.empty()) return Progress::kNeedsReads;
  if (!in_body_) {
    if (buffered() < kFrameHeaderBytes) return Progress::kNeedsBytes;
    if (!begin_body()) return Progress::kCorrupt;
  }

  const ReadOperation& read = waiting_.front();
  // A body that lies whole in the buffer is given out where it is, without a copy.
  if (!read.sized && !owned_body_) {
    const char* body = buffer_.data() + begin_;
    begin_ += body_bytes_;
    return finish_read(body);
  }

  // Any other body is put together at its place, over as many readings as it takes.
  char* body = read.sized ? static_cast<char*>(read.data) : owned_body_.get();
  const size_t bytes = std::min(buffered(), body_bytes_ - body_have_);
  if (bytes > 0) std::memcpy(body + body_have_, buffer_.data() + begin_, bytes);
  begin_ += bytes;
  body_have_ += bytes;
  if (body_have_ < body_bytes_) return Progress::kNeedsBytes;
  return finish_read(body);
}

FrameReader::Progress FrameReader::finish_read(const char* body) {
  in_body_ = false;
  if (waiting_.front().object != nullptr) {
    tensorpipe::NopReader reader(reinterpret_cast<const uint8_t*>(body), body_bytes_);
    const auto status = waiting_.front().object->read(reader);
    if (status.error != nop::ErrorStatus::None || reader.left() != 0) {
      problem_ = "an object is malformed";
      return Progress::kCorrupt;
    }
  }

  // From here on nothing of this object is touched: the callback may end the connection.
  first_object_protected_ = false;
  const ReadOperation read = std::move(waiting_.front());
  waiting_.pop_front();
  const auto keep_alive = std::move(owned_body_);
  if (read.object != nullptr)
    read.on_object(tensorpipe::Error::kSuccess);
  else
    read.on_bytes(tensorpipe::Error::kSuccess, read.sized ? read.data : body, body_bytes_);
  return Progress::kServed;
}

MutableBuffers FrameReader::room() {
  if (begin_ == end_) begin_ = end_ = 0;

  // A long body is read where it belongs; what follows it goes into the buffer.
  direct_bytes_ = 0;
  size_t count = 0;
  const size_t missing = in_body_ ? body_bytes_ - body_have_ : 0;
  if (missing >= kDirectBytes && buffered() == 0) {
    const ReadOperation& read = waiting_.front();
    char* body = read.sized ? static_cast<char*>(read.data) : owned_body_.get();
    direct_bytes_ = std::min(missing, kMaxTransferBytes);
    room_[count++] = {body + body_have_, direct_bytes_};
    if (direct_bytes_ < missing) return {room_.data(), count};
  }

  // What is left moves to the front only when the room behind it gets short.
  if (begin_ > 0 && buffer_.size() - end_ < buffer_.size() / 4) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ < buffer_.size()) room_[count++] = {buffer_.data() + end_, buffer_.size() - end_};
  return {room_.data(), count};
}

void FrameReader::arrived(size_t bytes) {
  const size_t direct = std::min(bytes, direct_bytes_);
  body_have_ += direct;
  end_ += bytes - direct;
  direct_bytes_ = 0;
}

FrameReader::FirstFrame FrameReader::first_frame() const {
  if (buffered() < kFrameHeaderBytes) return FirstFrame::kIncomplete;
  uint64_t length = 0;
  std::memcpy(&length, buffer_.data() + begin_, sizeof length);
  if (length == 0 || length > limits_.max_first_frame_bytes) return FirstFrame::kCorrupt;
  return buffered() >= kFrameHeaderBytes + length ? FirstFrame::kComplete : FirstFrame::kIncomplete;
}

void FrameReader::fail(const tensorpipe::Error& error) {
  while (!waiting_.empty()) {
    const ReadOperation read = std::move(waiting_.front());
    waiting_.pop_front();
    const bool dropped = first_object_protected_ && read.object != nullptr;
    first_object_protected_ = false;
    if (!dropped) read.fail(error);
  }
}

}  // namespace retort::rpc::transport
