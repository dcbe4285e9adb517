#include "tests/rpc/transport/raw_stream.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace retort::rpc::transport::testing {
namespace {

int connect_to(const std::string& address) {
  const auto colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  RETORT_CHECK(getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) == 0);
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  RETORT_CHECK(::connect(fd, found->ai_addr, found->ai_addrlen) == 0) << std::strerror(errno);
  freeaddrinfo(found);
  return fd;
}

Stream::Endpoint endpoint_of(int fd, decltype(&::getsockname) name) {
  Stream::Endpoint endpoint;
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  RETORT_CHECK(name(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0);
  std::memcpy(endpoint.data(), &storage, size);
  endpoint.resize(size);
  return endpoint;
}

}  // namespace

RawStream::RawStream(const std::string& address) : RawStream(connect_to(address)) {}

RawStream::RawStream(int fd) : fd_(fd) {
  const timeval timeout{60, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

RawStream::~RawStream() { ::close(fd_); }

void RawStream::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

std::optional<std::string> RawStream::receive(size_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < size) {
    const auto got = ::recv(fd_, bytes.data() + have, size - have, 0);
    if (got < 0 && errno == EAGAIN)
      throw Error(ErrorCode::kTimeout, "the other side neither sent nor closed for 60 s");
    if (got <= 0) return std::nullopt;
    have += static_cast<size_t>(got);
  }
  return bytes;
}

std::string RawStream::drain() {
  std::string all;
  while (const auto byte = receive(1))
    all += *byte;
  return all;
}

ConnectionFacts RawStream::facts() const {
  return {endpoint_of(fd_, ::getsockname), endpoint_of(fd_, ::getpeername), ""};
}

std::optional<Proven> prove(RawStream& stream, const Identity& identity,
                            const ProofTarget& target) {
  ClientRules rules(identity, target, stream.facts());
  stream.send(rules.hello());
  const auto answer = stream.receive(kProofHeaderBytes + body_bytes(ProofFrame::kServerHello));
  if (!answer) return std::nullopt;
  const ProofStep step = rules.on_server_hello(answer->substr(kProofHeaderBytes));
  if (step.refusal != Refusal::kNone) return std::nullopt;
  stream.send(step.send);
  const auto verdict = stream.receive(kProofHeaderBytes + body_bytes(ProofFrame::kVerdict));
  if (!verdict) return std::nullopt;
  if (rules.on_verdict(verdict->substr(kProofHeaderBytes)) != Refusal::kNone) return std::nullopt;
  return rules.proven();
}

std::optional<Refusal> refusal_of(RawStream& stream) {
  const auto header = stream.receive(kProofHeaderBytes);
  if (!header || !is_verdict(*header)) return std::nullopt;
  const auto body = stream.receive(body_bytes(ProofFrame::kVerdict));
  Verdict verdict;
  if (!body || !parse(*body, verdict)) return std::nullopt;
  return verdict.refusal;
}

std::string data_frame(std::string_view body) {
  const uint64_t length = body.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + std::string(body);
}

}  // namespace retort::rpc::transport::testing
