// The frames of a control connection: what each says, and how a frame becomes bytes.
//
// The connection has been proved both ways before the first frame (rpc/transport/proof.h).
// On the wire: length (4 bytes, little-endian, without itself), type (1 byte), body
// (rpc/archive.h). Order:
//   client: Ready       server: Ready: it listens for the two pipes of this session
//   client: two pipes; each carries one PipeHello each way
//   both:   Heartbeat, Cancel, Bye, ByeAck; Grant, Want, AskBack, Lowered (receive_budget.h)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/options.h"
#include "rpc/archive.h"

namespace retort::rpc::detail {

// What two processes must have in common; their proof compares it. Raised with every change of
// frames, envelope or archive.
inline constexpr const char* kWireSchema =
    "retort frames 3, envelope 1, archive 1, tensorpipe of torch 2.11.0";
inline constexpr size_t kMaxFrameBytes = 64 << 10;
inline constexpr size_t kMaxNameBytes = 256;

enum class FrameType : uint8_t {
  kReady,
  kHeartbeat,
  kCancel,
  kBye,
  kByeAck,
  kGrant,
  kWant,
  kAskBack,
  kLowered
};

// Large messages are granted by kind: replies must not wait behind requests, or two busy peers
// could wait for each other.
enum class BulkKind : uint8_t { kRequests, kReplies };
inline constexpr size_t kNumBulkKinds = 2;

// The first frame of either side.
struct Ready {
  // Random per agent: tells a restarted peer from a second connection.
  std::string incarnation;
  // The largest data message that the sender accepts.
  uint64_t max_message_bytes = 0;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(incarnation, max_message_bytes);
  }
};

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

// Grant, Want, AskBack and Lowered: bytes since the session began.
struct Room {
  BulkKind kind = BulkKind::kRequests;
  uint64_t limit = 0;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(kind, limit);
  }
};

// The first message on every pipe, each way: which one of the session's two it is.
struct PipeHello {
  uint32_t index = 0;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(index);
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

// kCorrupt for a name of impossible length.
Ready parse_ready(std::string_view body);

// A code from the wire; kCorrupt if it is none.
ErrorCode checked_code(uint8_t code);

}  // namespace retort::rpc::detail

template <>
struct retort::EnumNames<retort::rpc::detail::BulkKind> {
  using E = retort::rpc::detail::BulkKind;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"requests", E::kRequests}, {"replies", E::kReplies}}};
};
