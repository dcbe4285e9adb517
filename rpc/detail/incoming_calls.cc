#include "rpc/detail/incoming_calls.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "base/error.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/peer_state.h"
#include "rpc/network/message_pipe.h"
#include "rpc/schema.h"

namespace retort::rpc::detail {
namespace {

using Clock = std::chrono::steady_clock;

// A Job is what the queue of handlers holds. If the queue throws it away unrun, the caller is told.
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

}  // namespace

bool IncomingCall::drop() {
  if (!start()) return false;
  stage = kDone;
  request = {};
  room.reset();
  return true;
}

void IncomingCall::run() {
  if (!start()) return;
  // The call may have waited long in the queue, and a handler that nobody waits for any more need
  // not run.
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
  // A handler may answer on any thread, and after the session has ended; only the loop touches the
  // calls.
  if (auto alive = session.lock())
    loop->post([alive = std::move(alive), to = calls, id = context.call_id,
                outcome = std::move(outcome),
                times = times()]() mutable { to->finish(id, std::move(outcome), times); });
}

ServedTimes IncomingCall::times() const {
  using std::chrono::duration_cast;
  using std::chrono::microseconds;
  const auto since = duration_cast<microseconds>(Clock::now() - arrived);
  const auto handler =
      duration_cast<microseconds>(context.clock->running().value_or(Clock::duration(0)));
  return {.queue = std::max(since - handler, microseconds(0)), .handler = handler};
}

void IncomingCalls::on_request(const Envelope& envelope, Message request,
                               std::shared_ptr<void> room, uint64_t bytes) {
  // The cancellation has overtaken the request over the control connection: nobody waits for the
  // answer.
  if (cancelled_early_.erase(envelope.call_id) > 0) return;

  const auto call = add(envelope, std::move(request), std::move(room), bytes);
  if (const auto error = begin(envelope, call))
    finish(envelope.call_id, failed(error->with("method", envelope.method)));
}

std::shared_ptr<IncomingCall> IncomingCalls::add(const Envelope& envelope, Message request,
                                                 std::shared_ptr<void> room, uint64_t bytes) {
  auto call =
      std::make_shared<IncomingCall>(CallContext{context_.peer(), envelope.call_id, nullptr});
  call->context.cancelled = call->cancelled;
  call->context.process = context_.peer_incarnation();
  if (envelope.queue_timeout_ms > 0)
    call->queue_deadline = Deadline::after(
        std::chrono::milliseconds(std::min(envelope.queue_timeout_ms, kMaxTimeoutMs)));
  call->request = std::move(request);
  call->room = std::move(room);
  call->session = context_.weak_from_this();
  call->calls = this;
  call->loop = context_.loop();
  call->method = envelope.method;
  call->bytes_received = bytes;
  call->devices = context_.host().options().devices;
  if (!calls_.emplace(envelope.call_id, call).second)
    throw Error(ErrorCode::kCorrupt, "two running calls have the same id")
        .with("id", envelope.call_id);
  return call;
}

// Returns the error of a request that this agent cannot serve, which is answered at once. Throws if
// the peer keeps to no bound; that ends the connection.
std::optional<Error> IncomingCalls::begin(const Envelope& envelope,
                                          const std::shared_ptr<IncomingCall>& call) {
  if (context_.host().closing())
    return Error(ErrorCode::kPeerLost, "the peer is closing and takes no more calls");
  if (calls_.size() + flow_.num_writes() > 4 * kMaxIncomingCalls)
    throw Error(ErrorCode::kResourceExhausted, "the peer asks on and does not take the answers");
  if (calls_.size() > kMaxIncomingCalls)
    return Error(ErrorCode::kResourceExhausted, "too many calls of one peer are unanswered");
  const auto handler = context_.host().handler(envelope.method);
  if (!handler) return Error(ErrorCode::kUnavailable, "the peer serves no such method");
  if (handler->schema != envelope.schema)
    return Error(ErrorCode::kMismatch,
                 "the two processes have different types for this method; both must be the "
                 "same retort version")
        .with("called_as", schema_name(envelope.schema))
        .with("served_as", schema_name(handler->schema));

  // A queue that takes no job, because it is full or closed, leaves the answer to us.
  call->handler = handler->run;
  auto job = std::make_shared<Job>(call);
  if (handler->queue->try_push([job] { job->call->run(); })) return std::nullopt;
  if (!call->start()) return std::nullopt;
  if (handler->queue->closed())
    return Error(ErrorCode::kPeerLost, "the peer no longer runs handlers");
  return Error(ErrorCode::kResourceExhausted,
               "the peer's queue of handlers is full; try again later");
}

void IncomingCalls::finish(uint64_t call_id, Outcome<Message> outcome, ServedTimes times) {
  const auto found = calls_.find(call_id);
  if (!context_.up() || found == calls_.end()) return;
  const auto call = found->second;
  // A cancelled call is counted but not answered: its caller has forgotten it.
  const bool wanted = !call->cancelled->load();
  call->stage = IncomingCall::kDone;
  calls_.erase(found);

  EndedCall ended{
      .how = EndedCall::How::kCancelled, .bytes_received = call->bytes_received, .served = times};
  if (wanted) {
    auto message = answer(call_id, outcome, times);
    ended.how = outcome.error ? EndedCall::How::kFailed : EndedCall::How::kAnswered;
    ended.bytes_sent = message->size_bytes();
    flow_.write(BulkKind::kReplies, call_id, std::move(message));
  }
  if (call->handler) context_.peer_state().methods().count_served(call->method, ended);

  context_.host().session_idle();
}

// A reply that cannot be sent (too large, a device without a map, no memory) becomes an error.
std::shared_ptr<WireMessage> IncomingCalls::answer(uint64_t call_id, Outcome<Message>& outcome,
                                                   const ServedTimes& times) {
  Envelope envelope{.kind = MessageKind::kReply,
                    .call_id = call_id,
                    .queue_us = static_cast<uint64_t>(times.queue.count()),
                    .handler_us = static_cast<uint64_t>(times.handler.count())};
  auto message = std::make_shared<WireMessage>();
  if (!outcome.error) {
    try {
      message->payload = join_payload(envelope, outcome.value->envelope);
      message->tensors = std::move(outcome.value->tensors);
      const Agent::Options& options = context_.host().options();
      address(*message, context_.peer(),
              std::min(context_.theirs().max_message_bytes, options.rpc.max_message_bytes.bytes),
              options.rpc, options.devices.get(), !context_.theirs().devices.empty());
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
  return message;
}

// Only a call that has not begun can be answered here; a running one sees the flag.
void IncomingCalls::on_cancel(uint64_t call_id) {
  const auto found = calls_.find(call_id);
  // The call has ended, but its answer may still stand in line here; it need not leave, since
  // nobody waits for it.
  if (found == calls_.end() && flow_.withdraw(BulkKind::kReplies, call_id))
    return context_.host().session_idle();
  // Either the answer has left, or the request is still on its way over the slower connection. For
  // the second case the id is kept.
  if (found == calls_.end()) {
    keep_early_cancel(call_id);
    return;
  }
  const auto call = found->second;
  call->cancelled->store(true);
  if (!call->drop()) return;
  finish(call->context.call_id, failed(Error(ErrorCode::kCancelled, "cancelled")));
}

// A peer has at most so many calls on their way that as many ids are enough; those of calls whose
// answers have left are the oldest before long.
void IncomingCalls::keep_early_cancel(uint64_t call_id) {
  cancelled_early_.insert(call_id);
  early_order_.push_back(call_id);
  if (early_order_.size() <= kMaxIncomingCalls) return;
  cancelled_early_.erase(early_order_.front());
  early_order_.pop_front();
}

void IncomingCalls::on_ask(uint64_t call_id) {
  Standing standing{.call_id = call_id};
  if (const auto found = calls_.find(call_id); found != calls_.end()) {
    const auto running = found->second->context.clock->running();
    standing.stage = running ? CallStage::kRunning : CallStage::kQueued;
    if (running)
      standing.running_ms = std::chrono::duration_cast<std::chrono::milliseconds>(*running).count();
  }
  context_.send_frame(FrameType::kStanding, standing);
}

void IncomingCalls::refuse_queued() {
  // The ids are gathered first, because finish() takes calls out of the map.
  std::vector<uint64_t> queued;
  for (const auto& [id, call] : calls_)
    if (call->drop()) queued.push_back(id);
  for (const uint64_t id : queued)
    finish(id, failed(Error(ErrorCode::kPeerLost, "the peer closed before the call began")));
}

void IncomingCalls::drop_all() {
  for (const auto& [id, call] : calls_) {
    call->cancelled->store(true);
    call->drop();
  }
  calls_.clear();
}

}  // namespace retort::rpc::detail
