// One attempt to reach a peer's port: resolve, connect, prove. Whoever wants another attempt makes
// another Dial.
//
// Use: auto dial = std::make_shared<Dial>(io, identity, streams, sockets, target, host, port);
//   dial->start(deadline, done). `done` runs once, later, on the loop thread.
// Errors: kPeerLost if nobody answers there; what the proof says (refusal.h); kTimeout.
// Threads: the loop thread. A name is resolved on a thread of Asio's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "rpc/transport/handshake.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/socket_options.h"
#include "rpc/transport/stream_factory.h"

namespace retort::rpc::transport {

// Whether another attempt may end otherwise: the other side does not listen yet, was slow, or had
// no room.
bool may_pass(const Error& error);
// Whether somebody answers there who is not the peer, or does not belong to the run: it may have
// taken a port that the peer had before, or will have. What a peer says that knows the secret is
// kMismatch, and final.
bool is_somebody_else(const Error& error);
// Between half of a pause and all of it, so that a crowd does not come back at one instant.
std::chrono::milliseconds with_jitter(std::chrono::milliseconds pause);
// The pauses between attempts: with jitter, and doubled each time up to half a second.
class RetryPause {
 public:
  std::chrono::milliseconds next();

 private:
  std::chrono::milliseconds pause_{20};
};

// Where a peer's port is, and who should answer there.
struct PeerPort {
  std::string host;
  std::string port;
  ProofTarget target;
};

class PeerDial {
 public:
  virtual ~PeerDial() = default;
  virtual void start(Deadline deadline, Handshake::Done done) = 0;
  // Ends it now; `done` runs inside the call.
  virtual void abort(const Error& error) = 0;
};

// Over TCP.
class Dial final : public PeerDial, public std::enable_shared_from_this<Dial> {
 public:
  // The identity outlives the dial.
  Dial(boost::asio::io_context& io, const Identity& identity, StreamFactory streams,
       const SocketOptions& sockets, PeerPort peer);

  void start(Deadline deadline, Handshake::Done done) override;
  void abort(const Error& error) override;

 private:
  void connect_to(boost::asio::ip::tcp::resolver::results_type endpoints);
  // Connects to the next address; `before` says why not to the one before.
  void connect_next(const boost::system::error_code& before);
  void prove();
  void finish(HandshakeResult result);
  void fail(Refusal refusal, const Error& error, bool nobody_listens = false);

  const Identity& identity_;
  const StreamFactory streams_;
  const SocketOptions socket_options_;
  const PeerPort peer_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::ip::tcp::resolver::results_type endpoints_;
  boost::asio::ip::tcp::resolver::results_type::const_iterator next_endpoint_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  Deadline deadline_;
  std::shared_ptr<Handshake> handshake_;
  Handshake::Done done_;
};

}  // namespace retort::rpc::transport
