// The frames of the control socket: what each says, and how a frame becomes bytes.
//
// On the wire: length (4 bytes, little-endian, without itself), type (1 byte), body
// (rpc/archive.h). Order:
//   client: Hello        server: Challenge | Refuse
//   client: Proof        server: Listen | Refuse          (both sides are authenticated from here
//                        on)
//   client: two pipes to the data listener; each carries one PipeHello each way
//   both:   Heartbeat, Cancel, Bye, ByeAck
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "rpc/archive.h"

namespace retort::rpc::detail {

inline constexpr uint64_t kMagic = 0x30'54'52'4f'54'45'52'ffULL;  // ff "RETORT0"
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kMaxFrameBytes = 64 << 10;
inline constexpr size_t kMaxHandshakeFrameBytes = 4 << 10;  // before the peer has proved anything
inline constexpr size_t kMaxNameBytes = 256;

enum class FrameType : uint8_t {
  kHello,
  kChallenge,
  kProof,
  kListen,
  kRefuse,
  kHeartbeat = 6,  // 5 is not used
  kCancel,
  kBye,
  kByeAck
};

// First frame of either side. The first two members never change, so that any version can refuse
// any other.
struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kProtocolVersion;
  std::string nonce;  // 64 hex digits
  std::string name;   // who sends this
  // random per agent: tells a restarted peer from a second connection
  std::string incarnation;
  std::string target;              // client: whom it wants to reach
  uint64_t max_message_bytes = 0;  // the largest data message the sender accepts
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(magic, version, nonce, name, incarnation, target, max_message_bytes);
  }
};

struct Proof {
  std::string mac;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(mac);
  }
};

struct Listen {
  std::string mac;
  std::string token;                             // proves on each pipe whose it is
  std::map<std::string, std::string> addresses;  // transport -> URL of the data listener
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(mac, token, addresses);
  }
};

// Refuse (during the handshake) and Bye (afterwards).
struct Farewell {
  uint8_t code = 0;
  std::string reason;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(code, reason);
  }
};

struct Cancel {
  uint64_t call_id = 0;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(call_id);
  }
};

template <class Body>
std::string frame_bytes(FrameType type, const Body& body) {
  const std::string content = to_bytes(body);
  const auto length = static_cast<uint32_t>(content.size() + 1);
  RETORT_CHECK(length <= kMaxFrameBytes) << "control frame of " << length << " bytes";
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += static_cast<char>(type);
  return bytes + content;
}

// Both sides' proofs cover both first frames, hence both nonces, names, versions and limits;
// `prover` keeps one side's proof from being the other's.
std::string handshake_mac(std::string_view secret, std::string_view prover, const Hello& client,
                          const Hello& server);

// kMismatch for another magic or version (read from the first bytes alone), kCorrupt for anything
// else that is wrong.
Hello parse_hello(std::string_view body);

// A code from the wire; kCorrupt if it is none.
ErrorCode checked_code(uint8_t code);

}  // namespace retort::rpc::detail
