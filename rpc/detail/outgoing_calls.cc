#include "rpc/detail/outgoing_calls.h"

#include <algorithm>
#include <exception>
#include <vector>

namespace retort::rpc::detail {
namespace {

using Clock = std::chrono::steady_clock;

// The peer's numbers are not trusted: beyond the longest timeout they mean nothing.
ServedTimes times_of(const Envelope& envelope) {
  const auto bounded = [](uint64_t us) {
    constexpr uint64_t kMost = uint64_t{kMaxTimeoutMs} * 1000;
    return std::chrono::microseconds(std::min(us, kMost));
  };
  return {.queue = bounded(envelope.queue_us), .handler = bounded(envelope.handler_us)};
}

}  // namespace

void OutgoingCall::finish(Outcome<Message> outcome) {
  const auto callback = std::exchange(done, nullptr);
  if (!callback) return;
  const auto latency = Clock::now() - started;
  if (outcome.value) peer->count_call(latency);
  peer->methods().count_called(method, ended(*message, latency));
  message.reset();
  callback(std::move(outcome));
}

void OutgoingCall::fail(const Error& error) {
  if (error.code() == ErrorCode::kCancelled) how = EndedCall::How::kCancelled;
  finish(failed(error.with("method", method)));
}

EndedCall OutgoingCall::ended(const WireMessage& request, std::chrono::nanoseconds latency) const {
  // A call can end while its request still waits for room.
  std::chrono::nanoseconds in_line = request.in_line;
  const bool in_line_still = request.in_line_since && in_line.count() == 0;
  if (in_line_still) in_line = Clock::now() - *request.in_line_since;

  return {.how = how,
          .bytes_sent = in_line_still ? 0 : request.size_bytes(),
          .bytes_received = bytes_received,
          .served = served,
          .round_trip = latency - waited - in_line,
          .waited = waited + in_line};
}

void OutgoingCalls::send(const std::shared_ptr<OutgoingCall>& call) {
  if (call->queue_deadline && call->queue_deadline->expired())
    return call->fail(
        Error(ErrorCode::kTimeout, "rpc.queue_timeout passed before the call was sent")
            .with("peer", context_.peer()));
  call->session = context_.weak_from_this();
  calls_.emplace(call->id, call);
  look_at(*call, Clock::now() + call->timeout);
  flow_.write(BulkKind::kRequests, call->id, call->message);
}

std::shared_ptr<OutgoingCall> OutgoingCalls::take(uint64_t call_id) {
  const auto found = calls_.find(call_id);
  if (found == calls_.end()) return nullptr;  // it ended before: timeout, cancellation
  auto call = std::move(found->second);
  calls_.erase(found);
  looks_.erase({call->next_look, call_id});
  return call;
}

OutgoingCalls::ById OutgoingCalls::take_all() {
  looks_.clear();
  return std::exchange(calls_, {});
}

void OutgoingCalls::cancel(uint64_t call_id, const Error& error) {
  const auto call = take(call_id);
  if (!call) return;
  // A request that has not left is withdrawn, and the peer need not hear of it.
  if (!flow_.withdraw(BulkKind::kRequests, call_id) && context_.up())
    context_.send_frame(FrameType::kCancel, Cancel{call_id});
  call->fail(error);
  goodbye_.acknowledge_unless(!empty());
  if (context_.up()) context_.host().session_idle();
}

void OutgoingCalls::cancel_all(const Error& error) {
  std::vector<uint64_t> ids;
  for (const auto& [id, call] : calls_)
    ids.push_back(id);
  for (const uint64_t id : ids)
    cancel(id, error);
}

void OutgoingCalls::on_reply(const Envelope& envelope, Message reply, uint64_t bytes) {
  auto how = EndedCall::How::kAnswered;
  Outcome<Message> outcome;
  if (envelope.kind == MessageKind::kError) {
    const Error error = error_from_body(reply.envelope).with("peer", context_.peer());
    how = error.code() == ErrorCode::kCancelled ? EndedCall::How::kCancelled
                                                : EndedCall::How::kFailed;
    outcome.error = std::make_exception_ptr(error);
  } else {
    outcome.value = std::move(reply);
  }

  const auto call = take(envelope.call_id);
  if (!call) return;
  call->how = how;
  call->bytes_received = bytes;
  call->served = times_of(envelope);
  call->finish(std::move(outcome));
}

// Sets the next look at a call: at `when`, or at the time by which it must have begun if that is
// earlier.
void OutgoingCalls::look_at(OutgoingCall& call, TimePoint when) {
  looks_.erase({call.next_look, call.id});
  if (call.queue_deadline && !call.queue_deadline->expired())
    when = std::min(when, call.queue_deadline->time());
  call.next_look = when;
  const bool earliest = looks_.empty() || when < looks_.begin()->first;
  looks_.emplace(when, call.id);
  if (earliest) arm_looks();
}

void OutgoingCalls::arm_looks() {
  if (looks_.empty()) return;
  // One timer serves all calls: it is set for the earliest look.
  look_timer_.expires_at(looks_.begin()->first);
  look_timer_.async_wait(
      [this, self = context_.shared_from_this()](const boost::system::error_code& code) {
        if (code || !context_.up()) return;
        while (!looks_.empty() && looks_.begin()->first <= Clock::now())
          look_after(*calls_.at(looks_.begin()->second));
        arm_looks();
      });
}

void OutgoingCalls::look_after(OutgoingCall& call) {
  // The peer knows nothing of a request that still waits here for room, so its time is judged here.
  const bool late = call.queue_deadline && call.queue_deadline->expired();
  const bool here = flow_.waits(BulkKind::kRequests, call.id);
  if (here && late)
    return cancel(call.id,
                  Error(ErrorCode::kTimeout, "the peer gave no room within rpc.queue_timeout")
                      .with("peer", context_.peer()));

  look_at(call, Clock::now() + call.timeout);
  if (!here) context_.send_frame(FrameType::kAsk, Ask{call.id});
}

void OutgoingCalls::on_standing(const Standing& standing) {
  const auto found = calls_.find(standing.call_id);
  if (found == calls_.end()) return;
  OutgoingCall& call = *found->second;
  const auto too_late = [&](const char* what) {
    cancel(standing.call_id, Error(ErrorCode::kTimeout, what).with("peer", context_.peer()));
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
