// Opens a socket that programs which this process starts do not inherit: in one call, so that one
// that is started meanwhile does not either. Who inherits a port holds it, and does not answer.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>

namespace retort::rpc::transport {

// `socket`: of a connection or a port, not open.
template <class Socket>
boost::system::error_code open_socket(Socket& socket, const boost::asio::ip::tcp& protocol) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return {errno, boost::system::system_category()};
  boost::system::error_code code;
  socket.assign(protocol, fd, code);
  if (code) ::close(fd);
  return code;
}

}  // namespace retort::rpc::transport
