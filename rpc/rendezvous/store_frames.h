// What a client of the run's store and its server say to each other, as values and as bytes.
//
// The connection has been proved both ways before the first frame (rpc/transport/proof.h). On the
// wire: length (frame_connection.h), then one StoreRequest or StoreReply (rpc/archive.h). Every
// request gets one reply with its id; replies come in any order, so that a request that waits holds
// up no other.
//
//   client                                      server
//   {id 1, kWait, keys a b, 30 s}         ->
//   {id 2, kSet, key c, value}            ->
//                                         <-    {id 2, kDone}
//                                         <-    {id 1, kDone}, once a and b exist
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/options.h"
#include "rpc/archive.h"
#include "rpc/launcher_port/frame_connection.h"

namespace retort::rpc::rendezvous {

// What clients can cost the server. A frame of the wire and what a request asks for are compared
// with them before memory is allocated.
struct StoreLimits {
  size_t max_key_bytes = 4 << 10;
  size_t max_value_bytes = 8 << 20;
  size_t max_frame_bytes = 32 << 20;    // all keys and values of one request, or of one reply
  size_t max_unsent_bytes = 128 << 20;  // replies that a client does not read
  size_t max_keys = 1 << 20;
  size_t max_stored_bytes = 512 << 20;  // all keys and values
  size_t max_waiters = 1 << 16;
  size_t max_waiting_bytes = 256 << 20;  // the keys that all waiters have named

  launcher_port::FrameLimits frames() const { return {max_frame_bytes, max_unsent_bytes}; }
};

// No request waits longer.
inline constexpr std::chrono::hours kMaxStoreTimeout{24 * 365};

enum class StoreOp : uint8_t {
  kSet,         // keys, as many values
  kGet,         // keys -> values; waits until all of them exist
  kWait,        // the same, without the values
  kAdd,         // key, number -> number; the value is decimal text, a missing one 0
  kAppend,      // key, value; a missing one is empty
  kCompareSet,  // key, expected and new value -> the value that then stands there
  kCheck,       // keys -> number: 1 if all exist, else 0
  kDelete,      // key -> number: 1 if it existed, else 0
  kCountKeys,   // -> number
};

struct StoreRequest {
  uint64_t id = 0;
  StoreOp op = StoreOp::kCheck;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  int64_t number = 0;
  int64_t timeout_ms = 0;  // of kGet and kWait
  template <class A>
  void serialize(A& archive) {
    archive(id, op, keys, values, number, timeout_ms);
  }
};

enum class StoreStatus : uint8_t {
  kDone,
  kTimedOut,  // `text` names the keys that are missing
  kRefused,   // the request cannot be fulfilled as it is; nothing has changed
  kFull,      // a limit of the server's is reached; nothing has changed
};

struct StoreReply {
  uint64_t id = 0;
  StoreStatus status = StoreStatus::kDone;
  std::vector<std::string> values;
  int64_t number = 0;
  std::string text;  // why not
  template <class A>
  void serialize(A& archive) {
    archive(id, status, values, number, text);
  }
};

// What is wrong with the number or the size of a request's keys and values; nullopt: nothing.
std::optional<std::string> problem_of(const StoreRequest& request, const StoreLimits& limits);

// How many values stand in the reply to a request that is done.
size_t num_reply_values(const StoreRequest& request);

// "a, b and 5 more": the keys as a message names them.
std::string key_list(const std::vector<std::string>& keys);

template <class Content>
std::string frame_of(const Content& content) {
  return launcher_port::with_length(to_bytes(content));
}

}  // namespace retort::rpc::rendezvous

template <>
struct retort::EnumNames<retort::rpc::rendezvous::StoreOp> {
  using E = retort::rpc::rendezvous::StoreOp;
  static constexpr std::array<std::pair<std::string_view, E>, 9> values{
      {{"set", E::kSet},
       {"get", E::kGet},
       {"wait", E::kWait},
       {"add", E::kAdd},
       {"append", E::kAppend},
       {"compare_set", E::kCompareSet},
       {"check", E::kCheck},
       {"delete", E::kDelete},
       {"count_keys", E::kCountKeys}}};
};

template <>
struct retort::EnumNames<retort::rpc::rendezvous::StoreStatus> {
  using E = retort::rpc::rendezvous::StoreStatus;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"done", E::kDone},
       {"timed_out", E::kTimedOut},
       {"refused", E::kRefused},
       {"full", E::kFull}}};
};
