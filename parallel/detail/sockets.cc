#include "parallel/detail/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/sizes.h"

namespace retort::parallel::detail {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, uint16_t port, int socket_type) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socket_type;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "the store's host '" + host + "' does not resolve: " + gai_strerror(rc));
  return {found, &freeaddrinfo};
}

std::string last_error() { return std::generic_category().message(errno); }

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Connects and closes again. Returns why it did not work, or "".
std::string try_connect(const addrinfo& address, Deadline deadline) {
  const Socket s(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (s.get() < 0) return last_error();
  if (connect(s.get(), address.ai_addr, address.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return last_error();
  // A connection under way can be written to when it stands or has failed; SO_ERROR tells which.
  pollfd waiting{.fd = s.get(), .events = POLLOUT, .revents = 0};
  if (poll(&waiting, 1, to_int(deadline.remaining().count())) <= 0) return "no answer";
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::generic_category().message(error);
}

}  // namespace

int bind_tcp_socket(const std::string& host, uint16_t port, uint16_t& bound_port) {
  std::string why = "no address";
  const AddressList list = resolve(host, port, SOCK_STREAM);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Socket s(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // With SO_REUSEADDR the port of a run that has just ended can be bound again at once.
    const int on = 1;
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    if (s.get() >= 0 && setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(s.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(s.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0) {
      bound_port =
          ntohs(local.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&local)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&local)->sin_port);
      return s.release();
    }
    why = last_error();
  }
  throw Error(ErrorCode::kUnavailable, "cannot bind the store to " + host + ":" +
                                           std::to_string(port) + ": " + why +
                                           "; choose another port, or 0 for a free one");
}

void wait_until_accepting(const std::string& host, uint16_t port, Deadline deadline) {
  constexpr std::chrono::milliseconds kPause{50};
  const AddressList list = resolve(host, port, SOCK_STREAM);
  std::string why = "no address";
  while (true) {
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      why = try_connect(*a, deadline);
      if (why.empty()) return;
    }
    if (deadline.expired()) break;
    std::this_thread::sleep_for(std::min(kPause, deadline.remaining()));
  }
  throw Error(ErrorCode::kTimeout,
              "nothing accepts connections at " + host + ":" + std::to_string(port) + ": " + why);
}

}  // namespace retort::parallel::detail
