// The server of the run's store: the keys and values by which the processes of a run find each
// other. It listens at one port, at which every connection proves itself before anything else is
// read of it, and runs on a thread of its own.
//
//   acceptor -> FrameConnection -> StoreState -> FrameConnection of whoever is answered
//
// Errors: the constructor throws kInvalidArgument for the identity and kUnavailable if it cannot
//   listen. Later ones cost a connection each; what a connection had asked for is then dropped.
// Limits: StoreLimits. A client that exceeds one gets an error, one whose frames cannot be loses
//   its connection.
// Threads: any; the destructor waits for the server's own.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rpc/launcher_port/frame_connection.h"
#include "rpc/loop/loop.h"
#include "rpc/rendezvous/store_frames.h"
#include "rpc/rendezvous/store_state.h"
#include "rpc/supervision/supervision_server.h"
#include "rpc/transport/acceptor.h"

namespace retort::rpc::rendezvous {

struct StoreServerOptions {
  // All processes of a run connect at once when it starts.
  transport::AcceptorOptions acceptor{.max_unproven = 1024};
  StoreLimits limits;
  // Takes the connections for supervision that come to the same port; null: they are refused.
  std::shared_ptr<supervision::SupervisionServer> supervision;
};

struct StoreStats {
  size_t connections = 0;
  size_t keys = 0;
  size_t stored_bytes = 0;
  size_t waiters = 0;
  uint64_t requests = 0;  // that ever came
};

class StoreServer {
 public:
  // `identity` is launcher_port::kStoreName's; clients of the same run, schema and secret are
  // taken.
  StoreServer(transport::Identity identity, transport::StreamFactory streams,
              StoreServerOptions options);
  // Ends all connections: whoever waits gets an error at once.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // "127.0.0.1:4000", one for each address that it listens at.
  std::vector<std::string> addresses() const { return acceptor_->addresses(); }
  uint16_t port() const;
  const transport::AcceptorCounters& counters() const { return acceptor_->counters(); }
  StoreStats stats();

 private:
  void welcome(std::shared_ptr<transport::Stream> stream, const transport::Proven& who);
  void on_request(uint64_t connection, std::string_view content);
  void on_end(uint64_t connection, const std::string& peer, const Error& error);
  void answer(uint64_t connection, const StoreReply& reply);
  // Sets the timer to the next deadline of a waiter.
  void arm();

  const StoreLimits limits_;
  const std::shared_ptr<rpc::detail::Loop> loop_;

  // What follows is used on the loop thread.
  StoreState state_;
  std::map<uint64_t, std::shared_ptr<launcher_port::FrameConnection>> connections_;
  uint64_t next_connection_ = 0;
  uint64_t num_requests_ = 0;
  boost::asio::steady_timer timer_;
  std::optional<StoreState::TimePoint> armed_for_;
  bool closing_ = false;

  const std::shared_ptr<supervision::SupervisionServer> supervision_;
  std::shared_ptr<transport::Acceptor> acceptor_;
};

}  // namespace retort::rpc::rendezvous
