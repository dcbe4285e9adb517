// The calls that this side has made over one session: until each has its answer, or has taken too
// long. Nobody is told when a handler begins: the caller asks, at the earliest moment at which a
// call can have run for too long.
//
// Threads: the loop thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "rpc/archive.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/goodbye.h"
#include "rpc/detail/message_flow.h"
#include "rpc/detail/method_counters.h"
#include "rpc/detail/peer_state.h"
#include "rpc/detail/session_context.h"
#include "rpc/network/message_pipe.h"

namespace retort::rpc::detail {

// A call of ours. Ends by finish(), once, on the loop thread.
struct OutgoingCall {
  uint64_t id = 0;
  std::string method;
  std::chrono::milliseconds timeout{0};    // from the start of the handler
  std::optional<Deadline> queue_deadline;  // for that start
  std::chrono::steady_clock::time_point next_look{};
  std::shared_ptr<WireMessage> message;
  std::shared_ptr<PeerState> peer;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::function<void(Outcome<Message>)> done;
  std::weak_ptr<Session> session;
  // The peer's counters take these.
  std::chrono::nanoseconds waited{0};  // for credit
  EndedCall::How how = EndedCall::How::kFailed;
  ServedTimes served;           // as the reply says
  uint64_t bytes_received = 0;  // of the reply

  void finish(Outcome<Message> outcome);
  void fail(const Error& error);
  EndedCall ended(const WireMessage& request, std::chrono::nanoseconds latency) const;
};

class OutgoingCalls {
 public:
  using ById = std::unordered_map<uint64_t, std::shared_ptr<OutgoingCall>>;

  OutgoingCalls(SessionContext& context, MessageFlow& flow, Goodbye& goodbye)
      : context_(context), flow_(flow), goodbye_(goodbye), look_timer_(context.loop()->io()) {}

  void send(const std::shared_ptr<OutgoingCall>& call);
  void cancel(uint64_t call_id, const Error& error);
  void cancel_all(const Error& error);
  // A value or an error, for a call that may have ended already.
  void on_reply(const Envelope& envelope, Message reply, uint64_t bytes);
  // Takes the answer to where a call stands.
  void on_standing(const Standing& standing);
  bool empty() const { return calls_.empty(); }

  // The session's end: first nothing is looked at any more, then whoever is left is taken out.
  void stop_looks() { look_timer_.cancel(); }
  ById take_all();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  std::shared_ptr<OutgoingCall> take(uint64_t call_id);
  void look_at(OutgoingCall& call, TimePoint when);
  void arm_looks();
  void look_after(OutgoingCall& call);

  SessionContext& context_;
  MessageFlow& flow_;
  Goodbye& goodbye_;
  boost::asio::steady_timer look_timer_;  // next look at a call
  ById calls_;
  std::set<std::pair<TimePoint, uint64_t>> looks_;
};

}  // namespace retort::rpc::detail
