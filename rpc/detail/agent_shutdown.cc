#include "rpc/detail/agent_shutdown.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace retort::rpc::detail {
namespace {

constexpr std::chrono::seconds kDrainTimeout{3};

}  // namespace

Error agent_closed() { return Error(ErrorCode::kClosed, "the agent is closed"); }

AgentShutdown::AgentShutdown(const std::string& name, std::shared_ptr<Network> network,
                             const Sessions& sessions)
    : name_(name),
      network_(std::move(network)),
      loop_(network_->loop()),
      sessions_(sessions),
      drain_timer_(loop_->io()),
      down_future_(down_promise_.future()) {}

void AgentShutdown::begin() {
  begun_ = true;
  network_->close_port();
}

void AgentShutdown::drain() {
  // The list is copied, because a session that fails leaves it.
  for (const auto& session : Sessions(sessions_)) {
    // Calls that run may end; those that have not begun are refused at once.
    if (session->up())
      session->refuse_queued();
    else
      session->fail(agent_closed());
  }
  drain_timer_.expires_after(kDrainTimeout);
  drain_timer_.async_wait([this](const boost::system::error_code& code) {
    if (code || drained_) return;
    RETORT_LOG(kWarning) << name_ << " closes with calls that did not end; they are cancelled";
    drained_ = true;
    for (const auto& session : Sessions(sessions_))
      session->cancel_all(agent_closed());
    advance();
  });
  advance_soon();
}

void AgentShutdown::advance_soon() {
  if (advance_posted_) return;
  // It runs from the queue, because sessions call this in the middle of their own changes.
  advance_posted_ = true;
  boost::asio::post(loop_->io(), [this] {
    advance_posted_ = false;
    advance();
  });
}

void AgentShutdown::advance() {
  if (down_) return;
  if (!drained_) {
    for (const auto& session : sessions_)
      if (!session->idle()) return;
    drained_ = true;
  }
  for (const auto& session : Sessions(sessions_))
    session->say_goodbye();
  // This runs again when a session has ended.
  if (!sessions_.empty()) return;
  down_ = true;
  drain_timer_.cancel();
  network_->data().close();
  down_promise_.set_value(Empty{});
}

void AgentShutdown::join() {
  std::lock_guard lock(join_mutex_);
  if (joined_) return;
  down_future_.get();  // bounded by the drain and goodbye timeouts
  // TensorPipe's threads post to the loop, so they end before it does.
  network_->data().join();
  loop_->stop();
  joined_ = true;
}

}  // namespace retort::rpc::detail
