#include "rpc/transport/plain_stream.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace retort::rpc::transport {

PlainStream::PlainStream(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {
  // A socket that is dead already shows that at its first transfer.
  boost::system::error_code ignored;
  local_ = socket_.local_endpoint(ignored);
  remote_ = socket_.remote_endpoint(ignored);
}

void PlainStream::start(Handler handler) {
  boost::asio::post(socket_.get_executor(), [handler = std::move(handler)] { handler({}); });
}

void PlainStream::read_some(MutableBuffers to, TransferHandler handler) {
  socket_.async_read_some(to, std::move(handler));
}

void PlainStream::write_some(ConstBuffers from, TransferHandler handler) {
  socket_.async_write_some(from, std::move(handler));
}

void PlainStream::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace retort::rpc::transport
