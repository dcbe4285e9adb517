#include "tests/rpc/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>

#include "base/hash.h"
#include "rpc/detail/wire_schema.h"
#include "rpc/network/peer_address.h"
#include "tests/rpc/echo.h"

namespace retort::rpc::testing {
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

namespace {

transport::testing::NodeOptions raw_options(std::string name) {
  auto options = transport::testing::node_options(std::move(name));
  // Its data connections are never silent, whatever the test does not say.
  options.context.probe_interval = std::chrono::milliseconds(100);
  options.identity.run = "";
  options.identity.schema = detail::wire_schema();
  options.identity.credentials = {{"run", kSecret}};
  return options;
}

}  // namespace

RawPeer::RawPeer(const std::string& address, std::string name, std::string target)
    : node_(raw_options(std::move(name))),
      target_(std::move(target)),
      address_(detail::parse_address(address)) {}

RawPeer::~RawPeer() {
  if (proved_.stream) node_.on_loop([this] { proved_.stream->close(); });
}

void RawPeer::prove() {
  proved_ = node_.dial(address_.host + ":" + address_.port, {.name = target_});
  if (proved_.error) throw Error(*proved_.error);
  node_.on_loop([this] { node_.sessions->open(proved_.proven, address_.host, address_.port); });
}

void RawPeer::send_ready() {
  send(detail::frame_bytes(detail::FrameType::kReady,
                           detail::Ready{.incarnation = random_hex(16),
                                         .max_message_bytes = uint64_t{1} << 30,
                                         .max_inflight_calls = 256}));
}

void RawPeer::open_pipes(std::array<uint32_t, 2> places) {
  const auto frame = receive_frame();
  if (!frame || frame->first != detail::FrameType::kReady)
    throw Error(ErrorCode::kCorrupt, "the other side is not ready");
  for (size_t pipe = 0; pipe < pipes_.size(); ++pipe) {
    pipes_[pipe] = node_.pipe(proved_.proven.session);
    std::string hello = to_bytes(detail::PipeHello{places[pipe]});
    write(pipe, message(hello));
  }
}

void RawPeer::connect() {
  prove();
  send_ready();
  open_pipes();
}

void RawPeer::send(std::string bytes) {
  std::promise<void> written;
  node_.on_loop([&] {
    transport::write_all(proved_.stream, boost::asio::buffer(bytes),
                         [&](const auto&) { written.set_value(); });
  });
  written.get_future().get();
}

std::optional<std::string> RawPeer::receive(size_t size) {
  const auto bytes = std::make_shared<std::string>(size, '\0');
  const auto arrived = std::make_shared<std::promise<bool>>();
  auto there = arrived->get_future();
  node_.on_loop([&] {
    transport::read_all(proved_.stream, boost::asio::buffer(*bytes),
                        [bytes, arrived](const auto& code) { arrived->set_value(!code); });
  });
  if (there.wait_for(30s) != std::future_status::ready)
    throw Error(ErrorCode::kTimeout, "the other side neither sent nor closed for 30 s");
  if (!there.get()) return std::nullopt;
  return *bytes;
}

std::optional<std::pair<detail::FrameType, std::string>> RawPeer::receive_frame() {
  const auto header = receive(4);
  if (!header) return std::nullopt;
  uint32_t length = 0;
  std::memcpy(&length, header->data(), sizeof length);
  const auto body = receive(length);
  if (!body) return std::nullopt;
  return std::pair(static_cast<detail::FrameType>((*body)[0]), body->substr(1));
}

std::optional<ErrorCode> RawPeer::receive_farewell() {
  while (const auto frame = receive_frame())
    if (frame->first == detail::FrameType::kBye)
      return detail::checked_code(from_bytes<detail::Farewell>(frame->second).code);
  return std::nullopt;
}

void RawPeer::write(size_t pipe, tensorpipe::Message message) {
  const auto done = std::make_shared<std::promise<void>>();
  pipes_[pipe]->write(std::move(message),
                      [done](const tensorpipe::Error&) noexcept { done->set_value(); });
  if (done->get_future().wait_for(30s) == std::future_status::ready) return;
  node_.close();  // the callback runs, so the message may go
  throw Error(ErrorCode::kTimeout, "a message was not written");
}

tensorpipe::Message RawPeer::message(std::string& payload) {
  tensorpipe::Message out;
  out.payloads.resize(1);
  out.payloads[0].data = payload.data();
  out.payloads[0].length = payload.size();
  return out;
}

}  // namespace retort::rpc::testing
