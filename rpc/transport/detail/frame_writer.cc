#include "rpc/transport/detail/frame_writer.h"

#include <algorithm>
#include <utility>

namespace retort::rpc::transport {
namespace {

constexpr size_t kMaxPieces = 32;

}  // namespace

ConstBuffers FrameWriter::pieces() {
  pieces_.clear();
  if (probe_left_ > 0)
    pieces_.emplace_back(
        reinterpret_cast<const char*>(&kProbeHeader) + kFrameHeaderBytes - probe_left_,
        probe_left_);
  // One call of the system takes as many frames as the two limits allow.
  size_t sent = sent_;
  size_t bytes = 0;
  for (const WriteOperation& write : waiting_) {
    if (pieces_.size() + 2 > kMaxPieces || bytes >= kMaxTransferBytes) break;

    // The length is the header as it stands in memory; the deque does not move it.
    if (sent < kFrameHeaderBytes) {
      pieces_.emplace_back(reinterpret_cast<const char*>(&write.length) + sent,
                           kFrameHeaderBytes - sent);
      bytes += kFrameHeaderBytes - sent;
    }
    const size_t body_sent = sent > kFrameHeaderBytes ? sent - kFrameHeaderBytes : 0;
    const size_t body = std::min<size_t>(write.length - body_sent, kMaxTransferBytes);
    if (body > 0) pieces_.emplace_back(static_cast<const char*>(write.data) + body_sent, body);
    bytes += body;
    // What stands behind a body that was cut must wait for the rest of it.
    if (body < write.length - body_sent) break;
    sent = 0;
  }
  return pieces_;
}

void FrameWriter::written(size_t bytes) {
  const size_t of_probe = std::min(bytes, probe_left_);
  probe_left_ -= of_probe;
  sent_ += bytes - of_probe;
  while (!waiting_.empty() && sent_ >= kFrameHeaderBytes + waiting_.front().length) {
    sent_ -= kFrameHeaderBytes + waiting_.front().length;
    const WriteOperation write = std::move(waiting_.front());
    waiting_.pop_front();
    write.on_written(tensorpipe::Error::kSuccess);
  }
}

void FrameWriter::fail(const tensorpipe::Error& error) {
  while (!waiting_.empty()) {
    const WriteOperation write = std::move(waiting_.front());
    waiting_.pop_front();
    write.fail(error);
  }
}

}  // namespace retort::rpc::transport
