// A client's connection to the run's store, with a thread of its own. Any number of threads may
// call at a time: requests share the connection and none waits for another's reply.
//
//   caller's thread: call() -> pending -> post ... waits for its own reply
//   loop thread:              FrameConnection -> reply -> pending -> that caller goes on
//
// Errors: the constructor throws kTimeout with the last reason if there is no server by the
//   deadline, and at once kMismatch if there is one that knows the secret and is another program.
//   Whoever answers and has not proved anything, neither that it is the run's nor by what right it
//   refuses, may have the port of a run that is over: the first such answer is a warning in the
//   log, and at the deadline it is kUnauthenticated or kCorrupt. After the connection is lost every
//   call fails at once with kPeerLost: nothing is sent again, because an addition that is sent
//   twice counts twice.
// Threads: any but loop threads. The destructor may not run while a call is under way.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/deadline.h"
#include "base/future.h"
#include "rpc/launcher_port/frame_connection.h"
#include "rpc/loop/loop.h"
#include "rpc/rendezvous/store_frames.h"
#include "rpc/transport/dial.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/socket_options.h"
#include "rpc/transport/stream_factory.h"

namespace retort::rpc::rendezvous {

class StoreSession {
 public:
  // Connects; tries again while nobody answers. `identity` is this process's.
  StoreSession(transport::Identity identity, transport::StreamFactory streams,
               const std::string& host, uint16_t port, Deadline deadline,
               const StoreLimits& limits = {}, const transport::SocketOptions& sockets = {});
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  // Sends a request and waits for its reply, whatever that says. kInvalidArgument for one that is
  // larger than a frame, kTimeout if there is no reply by the deadline, kPeerLost.
  StoreReply call(StoreRequest request, Deadline deadline);

  // The connection is lost; every call fails from then on.
  bool ended() const;

  const StoreLimits& limits() const { return limits_; }
  // "127.0.0.1:4000", for errors.
  const std::string& address() const { return address_; }

 private:
  void attempt();
  void on_dialed(transport::HandshakeResult result);
  void note_stranger(const Error& error);
  void retry(const Error& reason);
  void on_reply(std::string_view content);
  void on_end(const Error& error);
  void stop();

  const transport::Identity identity_;
  const transport::StreamFactory streams_;
  const transport::PeerPort server_;
  const std::string address_;
  const StoreLimits limits_;
  const transport::SocketOptions sockets_;
  rpc::detail::Loop loop_;

  // Used on the loop thread.
  const Deadline connect_deadline_;
  boost::asio::steady_timer retry_timer_;
  transport::RetryPause pause_;
  std::optional<Error> refused_;  // by somebody who has proved nothing
  Promise<Empty> connected_;
  std::shared_ptr<launcher_port::FrameConnection> connection_;

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Promise<StoreReply>> pending_;
  uint64_t next_id_ = 1;
  std::optional<Error> ended_;
};

}  // namespace retort::rpc::rendezvous
