// One connection to one peer: a proved control connection, two pipes, the calls in both directions,
// heartbeats, and one way to end, fail(). What each of them does is a part's; the session hears the
// frames and messages, hands them to the parts, and moves on from phase to phase.
//
//   frame   -> on_frame()   -> set-up; MessageFlow (room), IncomingCalls (Cancel, Ask),
//                              OutgoingCalls (Standing), Goodbye (Bye, ByeAck)
//   message -> on_message() -> IncomingCalls (requests), OutgoingCalls (replies)
//   both kinds of calls     -> MessageFlow -> the two pipes
//
// Threads: the loop thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/goodbye.h"
#include "rpc/detail/incoming_calls.h"
#include "rpc/detail/message_flow.h"
#include "rpc/detail/outgoing_calls.h"
#include "rpc/detail/pipe_setup.h"
#include "rpc/detail/session_context.h"
#include "rpc/detail/session_host.h"
#include "rpc/network/message_pipe.h"
#include "rpc/network/peer_address.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::detail {

class Session final : public SessionContext {
 public:
  // `stream` is proved. `dialed`: where the peer's port is, if this side is the client. `host` must
  // outlive the session's end.
  Session(SessionHost& host, std::shared_ptr<transport::Stream> stream, transport::Proven proven,
          std::optional<PeerAddress> dialed);

  void start();
  // `settled` runs once: with null when the session is up, or with the reason why it will not be.
  void on_settled(std::function<void(const Error*)> settled) { on_settled_ = std::move(settled); }
  // Up, and the peer has not said goodbye.
  bool takes_calls() const { return up() && !goodbye_.peer_leaving(); }

  void send(const std::shared_ptr<OutgoingCall>& call);
  void cancel(uint64_t call_id, const Error& error) { outgoing_.cancel(call_id, error); }

  // Graceful end: refuse what has not begun; say_goodbye() once idle.
  void refuse_queued() { incoming_.refuse_queued(); }
  bool idle() const { return outgoing_.empty() && incoming_.empty() && flow_.num_writes() == 0; }
  void cancel_all(const Error& error);
  void say_goodbye() { goodbye_.say(); }
  void fail(const Error& reason) override;

 private:
  void on_frame(FrameType type, std::string_view body);
  void say_ready();
  void on_ready(std::string_view body);
  void check_devices() const;
  void go_up(Pipes pipes);
  void on_control(FrameType type, std::string_view body);
  void on_message(WireMessage message);
  void read_pipe(uint32_t index);
  void tick();
  Error lost_error(const Error& reason) const;

  const std::optional<PeerAddress> dialed_;
  boost::asio::steady_timer timer_;  // deadline of the set-up, then heartbeats
  PipeSetup setup_;
  MessageFlow flow_;
  Goodbye goodbye_;
  OutgoingCalls outgoing_;
  IncomingCalls incoming_;

  std::chrono::steady_clock::time_point last_heard_{}, last_tick_{};
  int owed_ticks_ = 0;  // heartbeats since the peer was asked for room back
  std::function<void(const Error*)> on_settled_;
};

}  // namespace retort::rpc::detail
