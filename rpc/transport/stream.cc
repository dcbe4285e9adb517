#include "rpc/transport/stream.h"

#include <utility>

namespace retort::rpc::transport {
namespace {

using boost::system::error_code;

// A Remainder is what is left of a read_all() or write_all(). It keeps the list of one buffer that
// the stream looks at during a transfer.
template <class Buffer>
struct Remainder : std::enable_shared_from_this<Remainder<Buffer>> {
  std::shared_ptr<Stream> stream;
  Buffer buffer;
  Stream::Handler handler;

  void transfer() {
    auto next = [self = this->shared_from_this()](const error_code& code, size_t bytes) {
      self->buffer += bytes;
      if (code || self->buffer.size() == 0) return self->handler(code);
      self->transfer();
    };
    if constexpr (std::is_same_v<Buffer, boost::asio::mutable_buffer>)
      stream->read_some({&buffer, 1}, std::move(next));
    else
      stream->write_some({&buffer, 1}, std::move(next));
  }
};

template <class Buffer>
void transfer_all(const std::shared_ptr<Stream>& stream, Buffer buffer, Stream::Handler handler) {
  auto remainder = std::make_shared<Remainder<Buffer>>();
  remainder->stream = stream;
  remainder->buffer = buffer;
  remainder->handler = std::move(handler);
  remainder->transfer();
}

}  // namespace

void read_all(const std::shared_ptr<Stream>& stream, boost::asio::mutable_buffer to,
              Stream::Handler handler) {
  transfer_all(stream, to, std::move(handler));
}

void write_all(const std::shared_ptr<Stream>& stream, boost::asio::const_buffer from,
               Stream::Handler handler) {
  transfer_all(stream, from, std::move(handler));
}

std::string to_string(const Stream::Endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" +
         std::to_string(endpoint.port());
}

}  // namespace retort::rpc::transport
