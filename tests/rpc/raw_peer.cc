#include "tests/rpc/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>

#include "base/hash.h"
#include "rpc/detail/connector.h"
#include "tests/rpc/echo.h"

namespace retort::rpc::testing {
namespace {

struct PipeHello {
  std::string token;
  uint32_t index = 0;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(token, index);
  }
};

}  // namespace

RawSocket::RawSocket(const std::string& address) {
  const auto where = detail::parse_address(address);
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval timeout{30, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(static_cast<uint16_t>(std::stoi(where.port)));
  inet_pton(AF_INET, where.host.c_str(), &target.sin_addr);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&target), sizeof target) == 0) return;
  RETORT_CHECK(errno == EINTR) << std::strerror(errno);
  pollfd writable{fd_, POLLOUT, 0};  // an interrupted connect goes on in the background
  while (::poll(&writable, 1, 30000) < 0 && errno == EINTR) {
  }
  int failure = 0;
  socklen_t size = sizeof failure;
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &failure, &size);
  RETORT_CHECK(failure == 0) << std::strerror(failure);
}

RawSocket::~RawSocket() { ::close(fd_); }

void RawSocket::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

std::optional<std::string> RawSocket::receive(size_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < size) {
    const auto got = ::recv(fd_, bytes.data() + have, size - have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      throw Error(ErrorCode::kTimeout, "the other side neither sent nor closed for 30 s");
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    have += static_cast<size_t>(got);
  }
  return bytes;
}

RawPeer::RawPeer(const std::string& address, std::string name, std::string target)
    : socket(address) {
  ours.nonce = random_hex(32);
  ours.name = std::move(name);
  ours.incarnation = random_hex(16);
  ours.target = std::move(target);
  ours.max_message_bytes = 1 << 30;
  context_.registerTransport(1, "uv", tensorpipe::transport::uv::create());
  context_.registerChannel(1, "basic", tensorpipe::channel::basic::create());
}

std::optional<std::pair<detail::FrameType, std::string>> RawPeer::receive_frame() {
  const auto header = socket.receive(4);
  if (!header) return std::nullopt;
  uint32_t length = 0;
  std::memcpy(&length, header->data(), sizeof length);
  const auto body = socket.receive(length);
  if (!body) return std::nullopt;
  return std::pair(static_cast<detail::FrameType>((*body)[0]), body->substr(1));
}

std::optional<ErrorCode> RawPeer::receive_farewell() {
  while (const auto frame = receive_frame())
    if (frame->first == detail::FrameType::kBye || frame->first == detail::FrameType::kRefuse)
      return detail::checked_code(from_bytes<detail::Farewell>(frame->second).code);
  return std::nullopt;
}

void RawPeer::send_hello() { socket.send(detail::frame_bytes(detail::FrameType::kHello, ours)); }

void RawPeer::receive_challenge() {
  const auto frame = receive_frame();
  if (!frame || frame->first != detail::FrameType::kChallenge)
    throw Error(ErrorCode::kCorrupt, "no challenge");
  theirs = detail::parse_hello(frame->second);
}

void RawPeer::send_proof(const std::string& secret) {
  socket.send(detail::frame_bytes(detail::FrameType::kProof, detail::Proof{detail::handshake_mac(
                                                                 secret, "client", ours, theirs)}));
}

void RawPeer::open_pipes() {
  const auto frame = receive_frame();
  if (!frame || frame->first != detail::FrameType::kListen)
    throw Error(ErrorCode::kCorrupt, "no listen frame");
  listen = from_bytes<detail::Listen>(frame->second);
  for (uint32_t index = 0; index < 2; ++index) {
    pipes_[index] = context_.connect(listen.addresses.at("uv"));
    std::string hello = to_bytes(PipeHello{listen.token, index});
    write(index, message(hello));
  }
}

void RawPeer::connect(const std::string& secret) {
  send_hello();
  receive_challenge();
  send_proof(secret);
  open_pipes();
}

void RawPeer::write(size_t pipe, tensorpipe::Message message) {
  std::promise<void> done;
  pipes_[pipe]->write(std::move(message),
                      [&](const tensorpipe::Error&) noexcept { done.set_value(); });
  if (done.get_future().wait_for(30s) != std::future_status::ready) {
    pipes_[pipe]->close();  // the callback runs, so `done` may go
    context_.close();
    context_.join();
    throw Error(ErrorCode::kTimeout, "a message was not written");
  }
}

tensorpipe::Message RawPeer::message(std::string& payload) {
  tensorpipe::Message out;
  out.payloads.resize(1);
  out.payloads[0].data = payload.data();
  out.payloads[0].length = payload.size();
  return out;
}

}  // namespace retort::rpc::testing
