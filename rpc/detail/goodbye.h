// How the two ends of a session part in peace: who leaves says Bye, the other one answers ByeAck
// when it waits for no more replies, and that ends the session at both. Neither waits for long.
//
// Threads: the loop thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <string_view>

#include "rpc/detail/session_context.h"

namespace retort::rpc::detail {

class Goodbye {
 public:
  explicit Goodbye(SessionContext& context) : context_(context), timer_(context.loop()->io()) {}

  // Says it, once; a session that is not up ends at once.
  void say();
  // ByeAck: the peer has all replies that it waits for. False if nobody has said goodbye here.
  bool on_acknowledged();
  // Bye, and with it the session's end if the peer refuses to go on. `calls_left`: this side still
  // waits for replies.
  void on_farewell(std::string_view body, bool calls_left);
  // Ends the session if the peer is leaving and nothing keeps it.
  void acknowledge_unless(bool calls_left);

  bool peer_leaving() const { return peer_leaving_; }
  void stop() { timer_.cancel(); }

 private:
  SessionContext& context_;
  boost::asio::steady_timer timer_;
  bool peer_leaving_ = false, said_ = false;
};

}  // namespace retort::rpc::detail
