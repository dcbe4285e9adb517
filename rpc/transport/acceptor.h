// The one published port of a process. Every connection proves itself before anything else reads a
// byte of it; then it goes where its purpose says.
//
//   stranger -> proof -> control: on_control(stream, who)    the agent makes a session of it
//                     -> data:    on_data(stream, who)       the listener of its session takes it
//                     -> supervision: on_supervision(stream, who)    the launcher hears a process
//                     -> refused: closed and counted
//
// Limits: so many connections may be unproven at a time, each for so long. Beyond that new ones
//   wait in the system's queue, so that a crowd of honest ones comes in one after the other and
//   nobody is thrown out; a connection that has said nothing for a while gives way to them, and
//   after a longer one that has said half a proof, which only somebody who knows the secret, or has
//   heard one who does, can have begun. When the process has no descriptors left the oldest gives
//   way. No limit is of an address: the ranks of a host have one, and so have those behind a
//   translator.
// Errors: the constructor throws kUnavailable if it cannot listen. Later ones cost a connection
//   each.
// Threads: the constructor, addresses() and counters() on any; start() and close() on the loop
//   thread, or before the loop runs. Handlers run on the loop thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "rpc/loop/loop.h"
#include "rpc/transport/acceptor_counters.h"
#include "rpc/transport/handshake.h"
#include "rpc/transport/listening_ports.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/socket_options.h"
#include "rpc/transport/stream_factory.h"

namespace retort::rpc::transport {

struct AcceptorOptions {
  std::vector<std::string> hosts{"127.0.0.1"};
  PortRange ports;
  size_t max_unproven = 256;
  std::chrono::milliseconds proof_timeout{5'000};
  // What has said nothing for so long gives way when there is no room; for a fifth of it, where
  // more than half of the places are silent. Half a proof gives way after twice as long.
  std::chrono::milliseconds silence{1'000};
  SocketOptions sockets;
};

struct AcceptorHandlers {
  using OnProven = std::function<void(std::shared_ptr<Stream>, const Proven&)>;
  OnProven on_control;
  OnProven on_data;
  OnProven on_supervision;  // null: no connections for supervision
  // Null: no data connections.
  std::function<std::optional<SessionKey>(const std::string& session)> find_session;
};

class Acceptor : public std::enable_shared_from_this<Acceptor> {
 public:
  // `streams` says whether connections are plain or under TLS.
  Acceptor(std::shared_ptr<rpc::detail::Loop> loop, AcceptorOptions options, Identity identity,
           StreamFactory streams, AcceptorHandlers handlers);

  // "127.0.0.1:4000", one for each address that it listens at.
  std::vector<std::string> addresses() const { return addresses_; }
  const AcceptorCounters& counters() const { return counters_; }
  size_t num_unproven() const { return unproven_.size(); }

  void start();
  // Stops listening and drops what is not proven. No handler runs afterwards.
  void close();

 private:
  struct Port {
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer pause;
    int errors_in_a_row = 0;
  };

  // One that has not proved itself yet.
  struct Unproven {
    std::shared_ptr<ServerHandshake> handshake;
    Deadline::Clock::time_point since;
  };

  // One that waits for room; its port accepts no other meanwhile.
  struct HeldBack {
    std::shared_ptr<Port> port;
    boost::asio::ip::tcp::socket socket;
  };

  void accept(const std::shared_ptr<Port>& port);
  void take(const std::shared_ptr<Port>& port);
  void admit(const std::shared_ptr<Port>& port, boost::asio::ip::tcp::socket socket);
  // Whether one more may come; who has had a place for too long gives way, now or when it is time.
  bool make_room();
  Deadline::Clock::time_point end_of(const Unproven& each, bool most_are_silent) const;
  // Admits what waits for room, if there is some now.
  void resume();
  void on_accept_error(const std::shared_ptr<Port>& port, const boost::system::error_code& code);
  void greet(boost::asio::ip::tcp::socket socket);
  void on_result(HandshakeResult result);
  bool evict_oldest();

  const std::shared_ptr<rpc::detail::Loop> loop_;
  const AcceptorOptions options_;
  const Identity identity_;
  const StreamFactory streams_;
  AcceptorHandlers handlers_;
  NonceMemory nonces_;
  ServerPolicy policy_;
  std::vector<std::shared_ptr<Port>> ports_;
  std::vector<std::string> addresses_;
  std::list<Unproven> unproven_;  // oldest first
  std::vector<HeldBack> held_back_;
  boost::asio::steady_timer room_timer_;
  AcceptorCounters counters_;
  bool closed_ = false;
};

}  // namespace retort::rpc::transport
