// How an agent ends: stop accepting, let what runs finish, cancel the rest, say goodbye, join.
#include "base/log.h"
#include "rpc/detail/agent_impl.h"

namespace retort::rpc {
namespace {

constexpr std::chrono::seconds kDrainTimeout{3};

Error closed_error() { return Error(ErrorCode::kClosed, "the agent is closed"); }

}  // namespace

void Agent::Impl::close() {
  std::vector<std::shared_ptr<detail::PeerState>> states;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    for (const auto& [name, peer] : peers_)
      states.push_back(peer.state);
  }
  for (const auto& state : states)
    state->close();
  loop_->post([this] { begin_close(); });
}

void Agent::Impl::begin_close() {
  closing_ = true;
  network_->close_port();
  for (const auto& weak : connectors_)
    if (const auto connector = weak.lock()) connector->abort(closed_error());
  for (const auto& session : std::vector<SessionPtr>(sessions_)) {
    if (session->up())
      session->refuse_queued();
    else
      session->fail(closed_error());
  }
  drain_timer_.expires_after(kDrainTimeout);
  drain_timer_.async_wait([this](const boost::system::error_code& code) {
    if (code || drained_) return;
    RETORT_LOG(kWarning) << options_.name
                         << " closes with calls that did not end; they are cancelled";
    drained_ = true;
    for (const auto& session : std::vector<SessionPtr>(sessions_))
      session->cancel_all(closed_error());
    advance_close();
  });
  session_idle();
}

void Agent::Impl::session_idle() {
  if (!closing_ || advance_posted_) return;
  // From the queue: sessions call this in the middle of their own changes.
  advance_posted_ = true;
  boost::asio::post(loop_->io(), [this] {
    advance_posted_ = false;
    advance_close();
  });
}

void Agent::Impl::advance_close() {
  if (down_) return;
  if (!drained_) {
    for (const auto& session : sessions_)
      if (!session->idle()) return;
    drained_ = true;
  }
  for (const auto& session : std::vector<SessionPtr>(sessions_))
    session->say_goodbye();
  if (!sessions_.empty()) return;
  down_ = true;
  drain_timer_.cancel();
  network_->data().close();
  down_promise_.set_value(Empty{});
}

void Agent::Impl::join() {
  RETORT_CHECK(!future_detail::on_loop_thread())
      << "Agent::join() on a loop thread waits for itself";
  close();
  std::lock_guard lock(join_mutex_);
  if (joined_) return;
  down_future_.get();  // bounded by the drain and goodbye timeouts
  network_->data().join();
  loop_->stop();
  joined_ = true;
}

}  // namespace retort::rpc
