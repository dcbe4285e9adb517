#include "rpc/transport/handshake.h"

#include <utility>

namespace retort::rpc::transport {

using boost::system::error_code;

Handshake::Handshake(boost::asio::io_context& io, std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)), timer_(io) {}

void Handshake::start(Deadline deadline, Done done) {
  done_ = std::move(done);
  timer_.expires_at(deadline.time());
  timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code) self->abort(Refusal::kTimeout);
  });
  stream_->start(guarded([this] { begin(); }));
}

void Handshake::abort(Refusal refusal) { refuse(refusal, refusal_error(refusal)); }

ConnectionFacts Handshake::facts() const {
  return {stream_->local_endpoint(), stream_->remote_endpoint(), stream_->channel_binding()};
}

Stream::Handler Handshake::guarded(std::function<void()> next) {
  return [self = shared_from_this(), next = std::move(next)](const error_code& code) {
    // A handshake that was given up has told its result already.
    if (self->finished()) return;
    if (!code) return next();
    self->refuse(Refusal::kClosed,
                 Error(refusal_error(Refusal::kClosed)).with("reason", code.message()));
  };
}

void Handshake::receive(ProofFrame type, bool or_verdict) {
  incoming_.resize(kProofHeaderBytes);
  const auto on_header = [this, type, or_verdict] {
    const Refusal refusal = check_header(incoming_, type);
    if (refusal == Refusal::kNone) return receive_body(type);
    if (or_verdict && is_verdict(incoming_)) return receive_body(ProofFrame::kVerdict);
    on_bad_frame(refusal);
  };
  read_all(stream_, boost::asio::buffer(incoming_), guarded(on_header));
}

void Handshake::receive_body(ProofFrame type) {
  incoming_.resize(body_bytes(type));
  read_all(stream_, boost::asio::buffer(incoming_),
           guarded([this, type] { on_frame(type, incoming_); }));
}

void Handshake::send(std::string bytes, std::function<void()> then) {
  outgoing_ = std::move(bytes);
  write_all(stream_, boost::asio::buffer(outgoing_), guarded(std::move(then)));
}

void Handshake::finish(HandshakeResult result) {
  const auto done = std::exchange(done_, nullptr);
  if (!done) return;
  timer_.cancel();
  if (result.refusal == Refusal::kNone)
    result.stream = stream_;
  else
    stream_->close();
  done(std::move(result));
}

void Handshake::refuse(Refusal refusal, const Error& error) {
  HandshakeResult result;
  result.refusal = refusal;
  result.error = error.with("address", to_string(stream_->remote_endpoint()));
  finish(std::move(result));
}

ServerHandshake::ServerHandshake(boost::asio::io_context& io, std::shared_ptr<Stream> stream,
                                 const Identity& identity, const ServerPolicy& policy)
    : Handshake(io, std::move(stream)), identity_(identity), policy_(policy) {}

void ServerHandshake::begin() {
  rules_.emplace(identity_, policy_, facts());
  receive(ProofFrame::kClientHello, false);
}

void ServerHandshake::on_frame(ProofFrame type, std::string_view body) {
  const bool hello = type == ProofFrame::kClientHello;
  ProofStep step = hello ? rules_->on_client_hello(body) : rules_->on_client_proof(body);
  if (step.refusal != Refusal::kNone) return send_refusal(step.refusal, std::move(step.send));
  under_way_ = true;
  if (hello)
    return send(std::move(step.send), [this] { receive(ProofFrame::kClientProof, false); });
  send(std::move(step.send), [this] { finish({.proven = rules_->proven()}); });
}

void ServerHandshake::on_bad_frame(Refusal refusal) {
  send_refusal(refusal, ServerRules::refusal_bytes(refusal));
}

// Tells the other side before it closes. Whether that side reads it does not matter, because the
// deadline holds.
void ServerHandshake::send_refusal(Refusal refusal, std::string bytes) {
  if (bytes.empty()) return abort(refusal);
  send(std::move(bytes), [this, refusal] { abort(refusal); });
}

ClientHandshake::ClientHandshake(boost::asio::io_context& io, std::shared_ptr<Stream> stream,
                                 const Identity& identity, ProofTarget target)
    : Handshake(io, std::move(stream)), identity_(identity), target_(std::move(target)) {}

void ClientHandshake::begin() {
  rules_.emplace(identity_, target_, facts());
  send(rules_->hello(), [this] { receive(ProofFrame::kServerHello, true); });
}

void ClientHandshake::on_frame(ProofFrame type, std::string_view body) {
  if (type == ProofFrame::kServerHello) {
    ProofStep step = rules_->on_server_hello(body);
    if (step.refusal != Refusal::kNone) return refuse(step.refusal, rules_->error());
    return send(std::move(step.send), [this] { receive(ProofFrame::kVerdict, false); });
  }
  const Refusal refusal = rules_->on_verdict(body);
  if (refusal != Refusal::kNone) return refuse(refusal, rules_->error());
  finish({.proven = rules_->proven()});
}

void ClientHandshake::on_bad_frame(Refusal refusal) { refuse(refusal, unproven_error(refusal)); }

}  // namespace retort::rpc::transport
