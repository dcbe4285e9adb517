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
#include <vector>

#include "base/error.h"
#include "base/options.h"
#include "rpc/archive.h"

namespace retort::rpc::detail {

inline constexpr size_t kMaxFrameBytes = 64 << 10;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxDevices = 64;  // of a process

enum class FrameType : uint8_t {
  kReady,
  kHeartbeat,
  kCancel,
  kBye,
  kByeAck,
  kGrant,
  kWant,
  kAskBack,
  kLowered,
  kAsk,
  kStanding
};
inline constexpr FrameType kLastFrameType = FrameType::kStanding;

// Large messages are granted by kind: replies must not wait behind requests, or two busy peers
// could wait for each other.
enum class BulkKind : uint8_t { kRequests, kReplies };
inline constexpr size_t kNumBulkKinds = 2;

// The first frame of either side.
struct Ready {
  // Random per agent: tells a restarted peer from a second connection.
  std::string incarnation;
  // Agent::Options::restart: of two agents of one name the one with more is the newer.
  uint64_t restart = 0;
  // The largest data message that the sender accepts.
  uint64_t max_message_bytes = 0;
  // RpcOptions::max_inflight_calls of the sender.
  uint64_t max_inflight_calls = 0;
  // The devices that the sender sees, by index (DeviceTransfer::device_ids()); none where it has no
  // way for their tensors.
  std::vector<std::string> devices = {};
  template <class A>
  void serialize(A& archive) {
    archive(incarnation, restart, max_message_bytes, max_inflight_calls, devices);
  }
};

struct Farewell {
  uint8_t code = 0;
  std::string reason;
  template <class A>
  void serialize(A& archive) {
    archive(code, reason);
  }
};

struct Cancel {
  uint64_t call_id = 0;
  template <class A>
  void serialize(A& archive) {
    archive(call_id);
  }
};

// Ask: where does my call stand? Its timeout may have passed.
struct Ask {
  uint64_t call_id = 0;
  template <class A>
  void serialize(A& archive) {
    archive(call_id);
  }
};

// The answer. kAbsent: it has not arrived yet, or its reply is on its way.
enum class CallStage : uint8_t { kAbsent, kQueued, kRunning };
struct Standing {
  uint64_t call_id = 0;
  CallStage stage = CallStage::kAbsent;
  int64_t running_ms = 0;  // since the handler began
  template <class A>
  void serialize(A& archive) {
    archive(call_id, stage, running_ms);
  }
};

// Grant, Want, AskBack and Lowered: bytes since the session began.
struct Room {
  BulkKind kind = BulkKind::kRequests;
  uint64_t limit = 0;
  template <class A>
  void serialize(A& archive) {
    archive(kind, limit);
  }
};

// The first message on every pipe, each way: which one of the session's two it is.
struct PipeHello {
  uint32_t index = 0;
  template <class A>
  void serialize(A& archive) {
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

// kCorrupt for a name of impossible length, or too many devices.
Ready parse_ready(std::string_view body);

// A code from the wire; kCorrupt if it is none.
ErrorCode checked_code(uint8_t code);

}  // namespace retort::rpc::detail

template <>
struct retort::EnumNames<retort::rpc::detail::FrameType> {
  using E = retort::rpc::detail::FrameType;
  static constexpr std::array<std::pair<std::string_view, E>, 11> values{
      {{"ready", E::kReady},
       {"heartbeat", E::kHeartbeat},
       {"cancel", E::kCancel},
       {"bye", E::kBye},
       {"bye_ack", E::kByeAck},
       {"grant", E::kGrant},
       {"want", E::kWant},
       {"ask_back", E::kAskBack},
       {"lowered", E::kLowered},
       {"ask", E::kAsk},
       {"standing", E::kStanding}}};
  static_assert(values.back().second == retort::rpc::detail::kLastFrameType);
};

template <>
struct retort::EnumNames<retort::rpc::detail::BulkKind> {
  using E = retort::rpc::detail::BulkKind;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"requests", E::kRequests}, {"replies", E::kReplies}}};
};

template <>
struct retort::EnumNames<retort::rpc::detail::CallStage> {
  using E = retort::rpc::detail::CallStage;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"absent", E::kAbsent}, {"queued", E::kQueued}, {"running", E::kRunning}}};
};
