// The part of Session that runs once it is up: calls, replies, heartbeats.
#include "rpc/detail/session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "rpc/transport/caught_error.h"

namespace retort::rpc::detail {
namespace {

constexpr int64_t kMaxTimeoutMs = int64_t{30} * 24 * 3600 * 1000;
using Clock = std::chrono::steady_clock;

// What is pushed to the handler queue. If the queue throws it away unrun, the caller is told.
struct Job {
  std::shared_ptr<IncomingCall> call;
  explicit Job(std::shared_ptr<IncomingCall> c) : call(std::move(c)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    if (call->start())
      call->reply(failed(
          Error(ErrorCode::kPeerLost, "the queue of handlers went away before the call ran")));
  }
};

// A peer may say what it likes; beyond this it means nothing.
ServedTimes times_of(const Envelope& envelope) {
  const auto bounded = [](uint64_t us) {
    constexpr uint64_t kMost = uint64_t{kMaxTimeoutMs} * 1000;
    return std::chrono::microseconds(std::min(us, kMost));
  };
  return {.queue = bounded(envelope.queue_us), .handler = bounded(envelope.handler_us)};
}

}  // namespace

Outcome<Message> failed(Error error) {
  Outcome<Message> outcome;
  outcome.error = std::make_exception_ptr(std::move(error));
  return outcome;
}

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

bool IncomingCall::drop() {
  if (!start()) return false;
  stage = kDone;
  request = {};
  room.reset();
  return true;
}

void IncomingCall::run() {
  if (!start()) return;
  if (cancelled->load())
    return reply(failed(Error(ErrorCode::kCancelled, "cancelled before it ran")));
  if (queue_deadline && queue_deadline->expired())
    return reply(
        failed(Error(ErrorCode::kTimeout, "rpc.queue_timeout passed in the queue of handlers")));
  context.clock->begin();
  try {
    (*handler)(std::move(request), context, [self = shared_from_this()](Outcome<Message> outcome) {
      self->reply(std::move(outcome));
    });
  } catch (...) {
    reply({std::nullopt, std::current_exception()});
  }
  room.reset();  // what the handler kept is the handler's
}

void IncomingCall::reply(Outcome<Message> outcome) {
  stage = kDone;
  try {
    if (outcome.value) begin_send(outcome.value->tensors, devices.get());
  } catch (...) {
    outcome = {std::nullopt, std::current_exception()};
  }
  if (auto target = session.lock())
    loop->post(
        [target = std::move(target), id = context.call_id, outcome = std::move(outcome),
         times = times()]() mutable { target->finish_incoming(id, std::move(outcome), times); });
}

ServedTimes IncomingCall::times() const {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  const auto since = duration_cast<microseconds>(Clock::now() - arrived);
  const auto handler =
      duration_cast<microseconds>(context.clock->running().value_or(Clock::duration(0)));
  return {.queue = std::max(since - handler, microseconds(0)), .handler = handler};
}

void Session::go_up() {
  phase_ = Phase::kUp;
  state_ = host_.peer_state(peer());
  state_->set_limits(theirs_.max_message_bytes, theirs_.max_inflight_calls);
  last_heard_ = last_tick_ = Clock::now();
  tick();
  host_.session_up(shared_from_this());
  if (const auto settled = std::exchange(on_settled_, nullptr)) settled(nullptr);
  read_pipe(0);
  read_pipe(1);
}

void Session::tick() {
  const auto interval = host_.options().rpc.heartbeats();
  const auto timeout = host_.options().rpc.peer_timeout;
  const auto now = Clock::now();
  // A tick that is very late means that this process was stopped; then the silence is ours.
  if (now - last_tick_ > timeout) last_heard_ = now;
  last_tick_ = now;
  if (now - last_heard_ > timeout)
    return fail(Error(ErrorCode::kPeerLost, "no heartbeat for rpc.peer_timeout")
                    .with("timeout", format_duration(timeout)));
  owed_ticks_ = owes_room() ? owed_ticks_ + 1 : 0;
  if (owed_ticks_ * interval > timeout)
    return fail(Error(ErrorCode::kPeerLost, "the peer does not give back room for rpc.peer_timeout")
                    .with("timeout", format_duration(timeout)));
  control_->send(frame_bytes(FrameType::kHeartbeat, Empty{}));
  timer_.expires_after(interval);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (!code && self->phase_ == Phase::kUp) self->tick();
  });
}

void Session::send(const std::shared_ptr<OutgoingCall>& call) {
  if (!takes_calls())
    return call->fail(lost_error(Error(ErrorCode::kPeerLost, "the peer is gone")));
  if (call->queue_deadline && call->queue_deadline->expired())
    return call->fail(
        Error(ErrorCode::kTimeout, "rpc.queue_timeout passed before the call was sent")
            .with("peer", peer()));
  call->session = weak_from_this();
  outgoing_.emplace(call->id, call);
  look_at(*call, Clock::now() + call->timeout);
  write(BulkKind::kRequests, call->id, call->message);
}

std::shared_ptr<OutgoingCall> Session::take_outgoing(uint64_t call_id) {
  const auto found = outgoing_.find(call_id);
  if (found == outgoing_.end()) return nullptr;  // it ended before: timeout, cancellation
  auto call = std::move(found->second);
  outgoing_.erase(found);
  looks_.erase({call->next_look, call_id});
  return call;
}

void Session::cancel(uint64_t call_id, const Error& error) {
  const auto call = take_outgoing(call_id);
  if (!call) return;
  // What has not left need not be cancelled over there.
  if (window(BulkKind::kRequests).remove(call_id))
    --writes_;
  else if (phase_ == Phase::kUp)
    control_->send(frame_bytes(FrameType::kCancel, Cancel{call_id}));
  call->fail(error);
  maybe_acknowledge_goodbye();
  if (phase_ == Phase::kUp) host_.session_idle();
}

void Session::on_message(WireMessage message) {
  const uint64_t bytes = message.size_bytes();
  state_->count_received(bytes);
  const auto room = std::exchange(message.credit, nullptr);
  try {
    std::string_view body;
    const Envelope envelope = split_payload(message.payload, body);
    if (envelope.kind == MessageKind::kRequest)
      return on_request(envelope, Message{std::string(body), std::move(message.tensors)}, room,
                        bytes);
    on_reply(envelope, Message{std::string(body), std::move(message.tensors)}, bytes);
  } catch (...) {
    return refuse(transport::caught_error());
  }
  if (phase_ != Phase::kUp) return;
  maybe_acknowledge_goodbye();
  if (phase_ == Phase::kUp) host_.session_idle();
}

// A value or an error, for a call of ours that has not ended yet.
void Session::on_reply(const Envelope& envelope, Message reply, uint64_t bytes) {
  auto how = EndedCall::How::kAnswered;
  Outcome<Message> outcome;
  if (envelope.kind == MessageKind::kError) {
    const Error error = error_from_body(reply.envelope).with("peer", peer());
    how = error.code() == ErrorCode::kCancelled ? EndedCall::How::kCancelled
                                                : EndedCall::How::kFailed;
    outcome.error = std::make_exception_ptr(error);
  } else {
    outcome.value = std::move(reply);
  }

  const auto call = take_outgoing(envelope.call_id);
  if (!call) return;
  call->how = how;
  call->bytes_received = bytes;
  call->served = times_of(envelope);
  call->finish(std::move(outcome));
}

void Session::on_request(const Envelope& envelope, Message request, std::shared_ptr<void> room,
                         uint64_t bytes) {
  // Its cancellation came first, over the control connection.
  if (std::erase(cancelled_early_, envelope.call_id) > 0) return;

  auto call = std::make_shared<IncomingCall>(CallContext{peer(), envelope.call_id, nullptr});
  call->context.cancelled = call->cancelled;
  call->context.process = peer_incarnation();
  if (envelope.queue_timeout_ms > 0)
    call->queue_deadline = Deadline::after(
        std::chrono::milliseconds(std::min(envelope.queue_timeout_ms, kMaxTimeoutMs)));
  call->request = std::move(request);
  call->room = std::move(room);
  call->session = weak_from_this();
  call->loop = loop_;
  call->method = envelope.method;
  call->bytes_received = bytes;
  call->devices = host_.options().devices;
  if (!incoming_.emplace(envelope.call_id, call).second)
    throw Error(ErrorCode::kCorrupt, "two running calls have the same id")
        .with("id", envelope.call_id);

  // What this agent cannot serve is answered at once.
  const auto answer = [&](Error error) {
    finish_incoming(envelope.call_id, failed(error.with("method", envelope.method)));
  };
  if (host_.closing())
    return answer(Error(ErrorCode::kPeerLost, "the peer is closing and takes no more calls"));
  if (incoming_.size() + writes_ > 4 * kMaxIncomingCalls)
    throw Error(ErrorCode::kResourceExhausted, "the peer asks on and does not take the answers");
  if (incoming_.size() > kMaxIncomingCalls)
    return answer(
        Error(ErrorCode::kResourceExhausted, "too many calls of one peer are unanswered"));
  const auto handler = host_.handler(envelope.method);
  if (!handler) return answer(Error(ErrorCode::kUnavailable, "the peer serves no such method"));
  if (handler->schema != envelope.schema)
    return answer(Error(ErrorCode::kMismatch,
                        "the two processes have different types for this method; both must be the "
                        "same retort version")
                      .with("called_as", schema_name(envelope.schema))
                      .with("served_as", schema_name(handler->schema)));

  // A queue that takes no job, because it is full or closed, leaves the answer to us.
  call->handler = handler->run;
  auto job = std::make_shared<Job>(call);
  if (handler->queue->try_push([job] { job->call->run(); })) return;
  if (!call->start()) return;
  const bool closed = handler->queue->closed();
  answer(closed ? Error(ErrorCode::kPeerLost, "the peer no longer runs handlers")
                : Error(ErrorCode::kResourceExhausted,
                        "the peer's queue of handlers is full; try again later"));
}

void Session::finish_incoming(uint64_t call_id, Outcome<Message> outcome, ServedTimes times) {
  const auto found = incoming_.find(call_id);
  if (phase_ != Phase::kUp || found == incoming_.end()) return;
  const auto call = found->second;
  const bool wanted = !call->cancelled->load();
  call->stage = IncomingCall::kDone;
  incoming_.erase(found);

  EndedCall ended{
      .how = EndedCall::How::kCancelled, .bytes_received = call->bytes_received, .served = times};
  if (wanted) {
    Envelope envelope{.kind = MessageKind::kReply,
                      .call_id = call_id,
                      .queue_us = static_cast<uint64_t>(times.queue.count()),
                      .handler_us = static_cast<uint64_t>(times.handler.count())};
    // A reply that cannot be sent (too large, a device without a map, no memory) becomes an error.
    auto message = std::make_shared<WireMessage>();
    if (!outcome.error) {
      try {
        message->payload = join_payload(envelope, outcome.value->envelope);
        message->tensors = std::move(outcome.value->tensors);
        const auto& rpc = host_.options().rpc;
        address(*message, peer(), std::min(theirs_.max_message_bytes, rpc.max_message_bytes.bytes),
                rpc, host_.options().devices.get());
      } catch (...) {
        outcome.error = std::current_exception();
      }
    }

    // An error travels without the tensors of the reply.
    if (outcome.error) {
      message->tensors.clear();
      message->target_devices.clear();
      envelope.kind = MessageKind::kError;
      message->payload = join_payload(envelope, error_to_body(outcome.error));
    }
    ended.how = outcome.error ? EndedCall::How::kFailed : EndedCall::How::kAnswered;
    ended.bytes_sent = message->size_bytes();
    write(BulkKind::kReplies, call_id, std::move(message));
  }
  if (call->handler) state_->methods().count_served(call->method, ended);

  host_.session_idle();
}

}  // namespace retort::rpc::detail
