#include "rpc/transport/sessions.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace retort::rpc::transport {
namespace {

using boost::system::error_code;

}  // namespace

// Attempts dials for one data connection, again and again until it stands or the deadline comes.
class Sessions::Attempts : public std::enable_shared_from_this<Attempts> {
 public:
  Attempts(std::shared_ptr<Sessions> sessions, PeerPort peer, Dialed done)
      : sessions_(std::move(sessions)),
        peer_(std::move(peer)),
        deadline_(Deadline::after(sessions_->options_.dial_timeout)),
        pause_timer_(sessions_->loop_->io()),
        done_(std::move(done)) {}

  void attempt() {
    dial_ = std::make_shared<Dial>(sessions_->loop_->io(), sessions_->identity_,
                                   sessions_->streams_, sessions_->options_.sockets, peer_);
    dial_->start(deadline_, [self = shared_from_this()](HandshakeResult result) {
      self->dial_.reset();
      self->on_result(std::move(result));
    });
  }

  void finish(std::optional<Error> error, std::shared_ptr<Stream> stream) {
    const auto done = std::exchange(done_, nullptr);
    if (!done) return;
    pause_timer_.cancel();
    const auto self = shared_from_this();
    if (const auto found = sessions_->dials_.find(peer_.target.session);
        found != sessions_->dials_.end())
      found->second.erase(self);
    if (const auto dial = std::exchange(dial_, nullptr)) dial->abort(*error);
    done(std::move(error), std::move(stream));
  }

 private:
  void on_result(HandshakeResult result) {
    if (!done_) return;
    if (!result.error) return finish(std::nullopt, std::move(result.stream));
    const bool again = result.refusal == Refusal::kClosed || result.refusal == Refusal::kEvicted;
    if (!again || deadline_.expired()) return finish(result.error, nullptr);

    pause_timer_.expires_after(pause_.next());
    pause_timer_.async_wait([self = shared_from_this()](const error_code& code) {
      if (!code && self->done_) self->attempt();
    });
  }

  const std::shared_ptr<Sessions> sessions_;
  const PeerPort peer_;
  const Deadline deadline_;
  RetryPause pause_;
  boost::asio::steady_timer pause_timer_;
  std::shared_ptr<Dial> dial_;
  Dialed done_;
};

Sessions::Sessions(std::shared_ptr<rpc::detail::Loop> loop, Identity identity,
                   StreamFactory streams, SessionsOptions options)
    : loop_(std::move(loop)),
      identity_(std::move(identity)),
      streams_(std::move(streams)),
      options_(options) {}

Sessions::~Sessions() = default;

void Sessions::open(const Proven& control, std::string host, std::string port) {
  entries_[control.session] = {{control.key, control.peer}, std::move(host), std::move(port)};
}

void Sessions::end(const std::string& session) {
  entries_.erase(session);
  const auto found = dials_.find(session);
  if (found == dials_.end()) return;
  // The attempts are taken out first, because each one that finishes takes itself off the map.
  const auto dials = std::move(found->second);
  dials_.erase(found);
  for (const auto& attempts : dials)
    attempts->finish(Error(ErrorCode::kClosed, "the session has ended"), nullptr);
}

void Sessions::close() {
  entries_.clear();
  while (!dials_.empty())
    end(std::string(dials_.begin()->first));
}

std::optional<SessionKey> Sessions::find(const std::string& session) const {
  const auto found = entries_.find(session);
  if (found == entries_.end()) return std::nullopt;
  return found->second.key;
}

void Sessions::dial(const std::string& session, Dialed done) {
  const auto found = entries_.find(session);
  if (found == entries_.end() || found->second.host.empty())
    // This fails from the queue: no dial ends inside of the call that began it.
    return boost::asio::post(loop_->io(), [done = std::move(done)] {
      done(Error(ErrorCode::kPeerLost, "the session has ended, or the other side dials it"),
           nullptr);
    });
  const Entry& entry = found->second;
  auto attempts = std::make_shared<Attempts>(
      shared_from_this(),
      PeerPort{entry.host, entry.port, {entry.key.peer, Purpose::kData, session, entry.key.key}},
      std::move(done));
  dials_[session].insert(attempts);
  attempts->attempt();
}

}  // namespace retort::rpc::transport
