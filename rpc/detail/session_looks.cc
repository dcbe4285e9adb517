// The part of Session that looks after the time of calls. Nobody is told when a handler begins: the
// caller asks, at the earliest moment at which a call can have run for too long.
#include <algorithm>
#include <utility>

#include "rpc/detail/session.h"

namespace retort::rpc::detail {

using Clock = std::chrono::steady_clock;

// The next look at a call: `when`, or when it must have begun.
void Session::look_at(OutgoingCall& call, Clock::time_point when) {
  looks_.erase({call.next_look, call.id});
  if (call.queue_deadline && !call.queue_deadline->expired())
    when = std::min(when, call.queue_deadline->time());
  call.next_look = when;
  const bool earliest = looks_.empty() || when < looks_.begin()->first;
  looks_.emplace(when, call.id);
  if (earliest) arm_looks();
}

void Session::arm_looks() {
  if (looks_.empty()) return;
  look_timer_.expires_at(looks_.begin()->first);
  look_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (code || self->phase_ != Phase::kUp) return;
    while (!self->looks_.empty() && self->looks_.begin()->first <= Clock::now())
      self->look_after(*self->outgoing_.at(self->looks_.begin()->second));
    self->arm_looks();
  });
}

void Session::look_after(OutgoingCall& call) {
  // It has not even left.
  const bool late = call.queue_deadline && call.queue_deadline->expired();
  const bool here = window(BulkKind::kRequests).waits(call.id);
  if (here && late)
    return cancel(call.id,
                  Error(ErrorCode::kTimeout, "the peer gave no room within rpc.queue_timeout")
                      .with("peer", peer()));

  look_at(call, Clock::now() + call.timeout);
  if (!here) control_->send(frame_bytes(FrameType::kAsk, Ask{call.id}));
}

void Session::on_ask(uint64_t call_id) {
  Standing standing{.call_id = call_id};
  if (const auto found = incoming_.find(call_id); found != incoming_.end()) {
    const auto running = found->second->context.clock->running();
    standing.stage = running ? CallStage::kRunning : CallStage::kQueued;
    if (running)
      standing.running_ms = std::chrono::duration_cast<std::chrono::milliseconds>(*running).count();
  }
  control_->send(frame_bytes(FrameType::kStanding, standing));
}

void Session::on_standing(const Standing& standing) {
  const auto found = outgoing_.find(standing.call_id);
  if (found == outgoing_.end()) return;
  OutgoingCall& call = *found->second;
  const auto too_late = [&](const char* what) {
    cancel(standing.call_id, Error(ErrorCode::kTimeout, what).with("peer", peer()));
  };

  // A call that is absent is on its way, or its reply is: the next look is set.
  if (standing.stage == CallStage::kQueued && call.queue_deadline && call.queue_deadline->expired())
    return too_late("no handler began the call within rpc.queue_timeout");
  if (standing.stage != CallStage::kRunning) return;
  const std::chrono::milliseconds ran(std::max<int64_t>(standing.running_ms, 0));
  if (ran >= call.timeout) return too_late("its handler did not answer within the call's timeout");
  look_at(call, Clock::now() + (call.timeout - ran));
}

}  // namespace retort::rpc::detail
