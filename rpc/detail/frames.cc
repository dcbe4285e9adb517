#include "rpc/detail/frames.h"

#include <cstring>

#include "base/hash.h"

namespace retort::rpc::detail {
namespace {

struct Transcript {
  std::string prover;
  Hello client, server;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(prover, client, server);
  }
};

}  // namespace

std::string handshake_mac(std::string_view secret, std::string_view prover, const Hello& client,
                          const Hello& server) {
  return hmac_sha256(secret, to_bytes(Transcript{std::string(prover), client, server}));
}

Hello parse_hello(std::string_view body) {
  uint64_t magic = 0;
  uint32_t version = 0;
  if (body.size() < sizeof magic + sizeof version)
    throw Error(ErrorCode::kCorrupt, "hello is too short");
  std::memcpy(&magic, body.data(), sizeof magic);
  std::memcpy(&version, body.data() + sizeof magic, sizeof version);
  if (magic != kMagic)
    throw Error(ErrorCode::kCorrupt, "the other side does not speak this protocol");
  if (version != kProtocolVersion)
    throw Error(ErrorCode::kMismatch,
                "protocol versions differ; use the same release on both sides")
        .with("ours", kProtocolVersion)
        .with("theirs", version);
  Hello hello = from_bytes<Hello>(body);
  if (hello.nonce.size() != 64 || hello.name.empty() || hello.name.size() > kMaxNameBytes ||
      hello.incarnation.empty() || hello.incarnation.size() > kMaxNameBytes)
    throw Error(ErrorCode::kCorrupt, "hello has a bad nonce or name");
  return hello;
}

ErrorCode checked_code(uint8_t code) {
  if (code > static_cast<uint8_t>(ErrorCode::kResourceExhausted))
    throw Error(ErrorCode::kCorrupt, "unknown error code").with("code", int{code});
  return static_cast<ErrorCode>(code);
}

}  // namespace retort::rpc::detail
