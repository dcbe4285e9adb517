#include "rpc/transport/socket_options.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace retort::rpc::transport {
namespace {

void set(int socket, int level, int option, long value) {
  const int number = static_cast<int>(value);
  // A socket that is dead already shows that at its first transfer.
  [[maybe_unused]] const int ignored = ::setsockopt(socket, level, option, &number, sizeof number);
}

}  // namespace

SocketOptions outlasting(std::chrono::milliseconds peer_timeout) {
  // What is sent again after a cut comes at intervals that double: a peer that is heard just in
  // time is answered by then.
  const auto wanted = std::chrono::ceil<std::chrono::seconds>(peer_timeout + peer_timeout / 2);
  SocketOptions options;
  options.user_timeout = std::max<std::chrono::milliseconds>(options.user_timeout, wanted);
  const auto probed = wanted - options.keepalive_idle;
  options.keepalive_interval =
      std::max(options.keepalive_interval,
               std::chrono::seconds((probed.count() + options.keepalive_count - 1) /
                                    options.keepalive_count));
  return options;
}

void apply(const SocketOptions& options, boost::asio::ip::tcp::socket& socket) {
  const int fd = socket.native_handle();
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, options.keepalive_idle.count());
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, options.keepalive_interval.count());
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, options.keepalive_count);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, options.user_timeout.count());
}

}  // namespace retort::rpc::transport
