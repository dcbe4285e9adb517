// Runs a proof over a fresh stream, from the handshake of TLS to the verdict, with a deadline.
//
// Use: auto handshake = std::make_shared<ServerHandshake>(stream, ...); handshake->start(...).
//   `done` runs once, later, on the loop thread. The object keeps itself alive until then.
// Errors: HandshakeResult::error says what a caller should see. After an error the stream is
//   closed.
// Threads: the loop thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/error.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

struct HandshakeResult {
  Refusal refusal = Refusal::kNone;
  std::optional<Error> error;  // set if refusal is
  // True for a dial if the system at that address says that nobody listens at the port.
  bool nobody_listens = false;
  std::shared_ptr<Stream> stream;  // null after an error
  Proven proven;
};

class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  using Done = std::function<void(HandshakeResult)>;

  virtual ~Handshake() = default;
  void start(Deadline deadline, Done done);
  // Ends it now with this reason; `done` runs inside the call.
  void abort(Refusal refusal);
  bool finished() const { return !done_; }

 protected:
  Handshake(boost::asio::io_context& io, std::shared_ptr<Stream> stream);

  // The stream is ready: facts() are known.
  virtual void begin() = 0;
  virtual void on_frame(ProofFrame type, std::string_view body) = 0;
  virtual void on_bad_frame(Refusal refusal) = 0;

  ConnectionFacts facts() const;
  // Reads one frame of this type; `or_verdict` lets a verdict come instead.
  void receive(ProofFrame type, bool or_verdict);
  void send(std::string bytes, std::function<void()> then);
  void finish(HandshakeResult result);
  void refuse(Refusal refusal, const Error& error);

 private:
  void receive_body(ProofFrame type);
  // Runs `next` if the transfer went well and the handshake still goes on.
  Stream::Handler guarded(std::function<void()> next);

  const std::shared_ptr<Stream> stream_;
  boost::asio::steady_timer timer_;
  std::string incoming_, outgoing_;
  Done done_;
};

class ServerHandshake final : public Handshake {
 public:
  // The identity and the policy outlive the handshake.
  ServerHandshake(boost::asio::io_context& io, std::shared_ptr<Stream> stream,
                  const Identity& identity, const ServerPolicy& policy);
  // The other side has said its first words, and they were those of a proof.
  bool under_way() const { return under_way_; }

 private:
  void begin() override;
  void on_frame(ProofFrame type, std::string_view body) override;
  void on_bad_frame(Refusal refusal) override;
  void send_refusal(Refusal refusal, std::string bytes);

  const Identity& identity_;
  const ServerPolicy& policy_;
  std::optional<ServerRules> rules_;
  bool under_way_ = false;
};

class ClientHandshake final : public Handshake {
 public:
  // The identity outlives the handshake.
  ClientHandshake(boost::asio::io_context& io, std::shared_ptr<Stream> stream,
                  const Identity& identity, ProofTarget target);

 private:
  void begin() override;
  void on_frame(ProofFrame type, std::string_view body) override;
  void on_bad_frame(Refusal refusal) override;

  const Identity& identity_;
  const ProofTarget target_;
  std::optional<ClientRules> rules_;
};

}  // namespace retort::rpc::transport
