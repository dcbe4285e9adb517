// Payload 0 of a data message: the RPC envelope, followed by the encoded request, reply or error.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "rpc/archive.h"

namespace retort::rpc::detail {

inline constexpr uint16_t kEnvelopeVersion = 3;
inline constexpr size_t kMaxMethodBytes = 256;
// A time of an envelope that is longer means no more than this.
inline constexpr int64_t kMaxTimeoutMs = int64_t{30} * 24 * 3600 * 1000;

enum class MessageKind : uint8_t { kRequest, kReply, kError };

struct Envelope {
  uint16_t version = kEnvelopeVersion;
  MessageKind kind = MessageKind::kRequest;
  uint64_t call_id = 0;
  std::string method;            // requests only
  uint64_t schema = 0;           // requests only: method_schema() where it was called
  int64_t timeout_ms = 0;        // requests only: from the start of the handler
  int64_t queue_timeout_ms = 0;  // requests only: from the arrival to that; 0: none
  uint64_t trace_id = 0;
  // Replies and errors only: how long the request waited for its handler, and that took.
  uint64_t queue_us = 0, handler_us = 0;
  uint64_t body_bytes = 0;  // what follows the envelope

  template <class A>
  void serialize(A& archive) {
    archive(version, kind, call_id, method, schema, timeout_ms, queue_timeout_ms, trace_id,
            queue_us, handler_us, body_bytes);
  }
};

// The body of a kError message.
struct WireError {
  uint8_t code = 0;
  std::string message, origin;
  std::vector<std::pair<std::string, std::string>> context;
  template <class A>
  void serialize(A& archive) {
    archive(code, message, origin, context);
  }
};

// The bytes of payload 0.
std::string join_payload(Envelope envelope, std::string_view body);
// Splits payload 0 again; `body` points into `payload`. kCorrupt.
Envelope split_payload(std::string_view payload, std::string_view& body);

// An error as the body of a kError message: code, message (at most 16 KiB), origin, context.
// Exceptions that are no Error become kRemote.
std::string error_to_body(const std::exception_ptr& error);
Error error_from_body(std::string_view body);

}  // namespace retort::rpc::detail

template <>
struct retort::EnumNames<retort::rpc::detail::MessageKind> {
  using E = retort::rpc::detail::MessageKind;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"request", E::kRequest}, {"reply", E::kReply}, {"error", E::kError}}};
};
