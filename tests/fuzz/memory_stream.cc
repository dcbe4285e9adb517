#include "tests/fuzz/memory_stream.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

namespace retort::fuzz {
namespace {

rpc::transport::Stream::Endpoint endpoint(uint16_t port) {
  return {boost::asio::ip::address_v4::loopback(), port};
}

}  // namespace

// As the interface promises: later, and with operation_aborted once the stream is closed.
void MemoryStream::finish(TransferHandler handler, size_t bytes, bool at_end) {
  boost::asio::post(io_, [this, handler = std::move(handler), bytes, at_end] {
    if (closed_) return handler(boost::asio::error::operation_aborted, 0);
    if (at_end) return handler(boost::asio::error::eof, 0);
    handler({}, bytes);
  });
}

void MemoryStream::start(Handler handler) {
  finish([handler = std::move(handler)](const auto& code, size_t) { handler(code); }, 0, false);
}

void MemoryStream::read_some(rpc::transport::MutableBuffers to, TransferHandler handler) {
  size_t moved = 0;
  for (const auto& buffer : to) {
    const size_t size = std::min({buffer.size(), incoming_.size(), piece_ - moved});
    if (size > 0) std::memcpy(buffer.data(), incoming_.data(), size);
    incoming_.remove_prefix(size);
    moved += size;
  }
  finish(std::move(handler), moved, moved == 0);
}

void MemoryStream::write_some(rpc::transport::ConstBuffers from, TransferHandler handler) {
  size_t moved = 0;
  for (const auto& buffer : from) {
    const size_t size = std::min(buffer.size(), piece_ - moved);
    written_.append(static_cast<const char*>(buffer.data()), size);
    moved += size;
  }
  finish(std::move(handler), moved, false);
}

MemoryStream::Endpoint MemoryStream::local_endpoint() const { return endpoint(1); }
MemoryStream::Endpoint MemoryStream::remote_endpoint() const { return endpoint(2); }

rpc::transport::ConnectionFacts MemoryStream::facts_over_there() {
  return {.local = endpoint(2), .remote = endpoint(1), .channel_binding = {}};
}

}  // namespace retort::fuzz
