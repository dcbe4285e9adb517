#include "rpc/detail/connector.h"

#include <algorithm>
#include <utility>

namespace retort::rpc::detail {
namespace {

using boost::system::error_code;
// One attempt takes so long at most: a peer that takes the connection but stays silent is dialed
// again.
constexpr std::chrono::seconds kAttempt{10};

}  // namespace

Connector::Connector(SessionHost& host, std::string peer, PeerAddress address, Deadline deadline,
                     Agent::Attempts attempts, Promise<Empty> promise)
    : host_(host),
      loop_(host.loop()),
      peer_(std::move(peer)),
      address_(std::move(address)),
      attempts_(attempts),
      promise_(std::move(promise)),
      deadline_timer_(loop_->io()),
      retry_timer_(loop_->io()),
      deadline_(deadline) {}

void Connector::start() {
  deadline_timer_.expires_at(deadline_.time());
  deadline_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (code || self->finished_) return;
    const Error error =
        Error(ErrorCode::kTimeout, "could not connect by the deadline; last: " + self->last_reason_)
            .with("address", self->address_.host + ":" + self->address_.port);
    self->finish(&error);
  });
  attempt();
}

void Connector::attempt() {
  dial_ = host_.dial({address_.host, address_.port, {.name = peer_}});
  dial_->start(Deadline(std::min(deadline_.time(), Deadline::after(kAttempt).time())),
               [self = shared_from_this()](transport::HandshakeResult result) {
                 self->dial_.reset();
                 self->on_proven(std::move(result));
               });
}

void Connector::on_proven(transport::HandshakeResult result) {
  if (finished_) {
    if (result.stream) result.stream->close();
    return;
  }
  if (result.error) {
    if (!transport::may_pass(*result.error)) return finish(&*result.error);
    return retry(*result.error);
  }

  auto session =
      std::make_shared<Session>(host_, std::move(result.stream), result.proven, address_);
  session_ = session;
  // The attempt ends when the session is up or has failed; what may pass is tried again.
  session->on_settled([self = shared_from_this()](const Error* error) {
    if (self->finished_) return;
    if (error && transport::may_pass(*error)) return self->retry(*error);
    self->finish(error);
  });
  host_.session_begins(session);
  session->start();
}

void Connector::retry(const Error& reason) {
  if (attempts_ == Agent::Attempts::kOnce) return finish(&reason);
  last_reason_ = reason.what();
  retry_timer_.expires_after(pause_.next());
  retry_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code && !self->finished_) self->attempt();
  });
}

void Connector::finish(const Error* error) {
  if (finished_) return;
  finished_ = true;
  deadline_timer_.cancel();
  retry_timer_.cancel();
  if (const auto dial = std::exchange(dial_, nullptr))
    dial->abort(Error(ErrorCode::kClosed, "the attempt was given up"));
  if (error) {
    // A session that is not up was made for this attempt alone, so it ends with it.
    if (const auto session = session_.lock(); session && !session->up()) session->fail(*error);
    promise_.set_error(std::make_exception_ptr(error->with("peer", peer_)));
  } else {
    promise_.set_value(Empty{});
  }
}

}  // namespace retort::rpc::detail
