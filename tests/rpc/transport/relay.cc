#include "tests/rpc/transport/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"

namespace retort::rpc::transport::testing {

Relay::Relay(std::string target) : target_(std::move(target)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  RETORT_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0);
  RETORT_CHECK(::listen(listener_, 8) == 0);
  RETORT_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  stop();
  ::close(listener_);
}

const std::string& Relay::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return seen_;
}

void Relay::run() {
  while (!stop_) {
    pollfd ready{listener_, POLLIN, 0};
    if (::poll(&ready, 1, 10) <= 0) continue;
    RawStream near(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)), far(target_);
    ++connections;
    forward(near, far);
  }
}

void Relay::forward(RawStream& near, RawStream& far) {
  pollfd both[2] = {{near.fd(), POLLIN, 0}, {far.fd(), POLLIN, 0}};
  while (!stop_) {
    if (::poll(both, 2, 10) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (both[i].revents == 0) continue;
      char bytes[4096];
      const auto size = ::recv(both[i].fd, bytes, sizeof bytes, 0);
      if (size <= 0) return;
      seen_.append(bytes, static_cast<size_t>(size));
      (i == 0 ? far : near).send({bytes, static_cast<size_t>(size)});
    }
  }
}

}  // namespace retort::rpc::transport::testing
