// The part of Session that hears control frames and ends: cancellations, farewells, failures.
#include <algorithm>
#include <utility>

#include "rpc/detail/session.h"

namespace retort::rpc::detail {
namespace {

constexpr std::chrono::milliseconds kGoodbyeTimeout{1000};
constexpr size_t kMaxEarlyCancels = 1024;

}  // namespace

void Session::on_control(FrameType type, std::string_view body) {
  switch (type) {
    case FrameType::kHeartbeat: return;
    case FrameType::kCancel: return on_cancel(from_bytes<Cancel>(body).call_id);
    case FrameType::kBye: return on_farewell(body);
    case FrameType::kByeAck:  // the peer has all replies that it waits for
      if (said_goodbye_) return fail(Error(ErrorCode::kClosed, "the agent is closed"));
      break;
    case FrameType::kGrant:
    case FrameType::kWant:
    case FrameType::kAskBack:
    case FrameType::kLowered: return on_room(type, from_bytes<Room>(body));
    case FrameType::kAsk: return on_ask(from_bytes<Ask>(body).call_id);
    case FrameType::kStanding: return on_standing(from_bytes<Standing>(body));
    case FrameType::kReady: break;
  }
  throw Error(ErrorCode::kCorrupt, "a control frame came out of order")
      .with("type", static_cast<int>(type));
}

// Only a call that has not begun can be answered here; a running one sees the flag.
void Session::on_cancel(uint64_t call_id) {
  const auto found = incoming_.find(call_id);
  // Nobody waits for its answer, which may not have left.
  if (found == incoming_.end() && window(BulkKind::kReplies).remove(call_id)) {
    --writes_;
    return host_.session_idle();
  }
  // It was answered, or is still on its way over the slower connection.
  if (found == incoming_.end()) {
    cancelled_early_.push_back(call_id);
    if (cancelled_early_.size() > kMaxEarlyCancels) cancelled_early_.pop_front();
    return;
  }
  const auto call = found->second;
  call->cancelled->store(true);
  if (!call->drop()) return;
  finish_incoming(call->context.call_id, failed(Error(ErrorCode::kCancelled, "cancelled")));
}

void Session::on_farewell(std::string_view body) {
  const auto farewell = from_bytes<Farewell>(body);
  const ErrorCode code = checked_code(farewell.code);
  // With an error: the peer refuses to go on, or to begin, which another attempt may not change.
  if (code != ErrorCode::kClosed)
    return fail(Error(phase_ < Phase::kUp ? code : ErrorCode::kPeerLost,
                      "the other side dropped the connection: " + farewell.reason)
                    .with("code", to_string(code)));

  // Its replies may still be on their way over the pipes: wait for them, a little.
  peer_leaving_ = true;
  goodbye_timer_.expires_after(kGoodbyeTimeout / 2);
  goodbye_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& stopped) {
    if (!stopped) self->fail(Error(ErrorCode::kPeerLost, "the other side closed its agent"));
  });
  maybe_acknowledge_goodbye();
}

void Session::maybe_acknowledge_goodbye() {
  if (!peer_leaving_ || phase_ == Phase::kDead || !outgoing_.empty()) return;
  control_->send(frame_bytes(FrameType::kByeAck, Empty{}));
  fail(Error(ErrorCode::kPeerLost, "the other side closed its agent"));
}

void Session::refuse_queued() {
  std::vector<uint64_t> queued;
  for (const auto& [id, call] : incoming_)
    if (call->drop()) queued.push_back(id);
  for (const uint64_t id : queued)
    finish_incoming(id,
                    failed(Error(ErrorCode::kPeerLost, "the peer closed before the call began")));
}

// Running ones see the flag, queued ones never begin.
void Session::drop_incoming() {
  for (const auto& [id, call] : incoming_) {
    call->cancelled->store(true);
    call->drop();
  }
  incoming_.clear();
}

void Session::cancel_all(const Error& error) {
  drop_incoming();
  std::vector<uint64_t> ids;
  for (const auto& [id, call] : outgoing_)
    ids.push_back(id);
  for (const uint64_t id : ids)
    cancel(id, error);
}

void Session::say_goodbye() {
  if (phase_ != Phase::kUp) return fail(Error(ErrorCode::kClosed, "the agent is closed"));
  if (said_goodbye_) return;
  said_goodbye_ = true;
  control_->send(
      frame_bytes(FrameType::kBye, Farewell{static_cast<uint8_t>(ErrorCode::kClosed), "closed"}));
  goodbye_timer_.expires_after(kGoodbyeTimeout);
  goodbye_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (!code) self->fail(Error(ErrorCode::kClosed, "the agent is closed"));
  });
}

Error Session::lost_error(const Error& reason) const {
  const auto code = reason.code() == ErrorCode::kClosed ? ErrorCode::kClosed : ErrorCode::kPeerLost;
  return Error(code, reason.message(), reason.origin(), reason.context()).with("peer", peer());
}

void Session::fail(const Error& reason) {
  if (phase_ == Phase::kDead) return;

  // From here on nothing is sent or received.
  const auto self = shared_from_this();
  phase_ = Phase::kDead;
  timer_.cancel();
  look_timer_.cancel();
  goodbye_timer_.cancel();
  control_->close_after_flush();
  host_.data().end(proven_.session);
  if (listener_) listener_->close();
  for (const auto& pipe : candidates_)
    pipe->close();
  for (const auto& pipe : pipes_)
    if (pipe) pipe->close();
  candidates_.clear();
  for (const auto& account : accounts_)
    if (account) account->close();
  for (auto& window : windows_)
    if (window) window->clear();

  drop_incoming();
  looks_.clear();
  const auto calls = std::exchange(outgoing_, {});

  // First the agent forgets this session, so that what a completion starts meets the new state of
  // things.
  host_.session_down(self, reason);
  if (const auto settled = std::exchange(on_settled_, nullptr)) settled(&reason);
  for (const auto& [id, call] : calls)
    call->fail(lost_error(reason));
}

}  // namespace retort::rpc::detail
