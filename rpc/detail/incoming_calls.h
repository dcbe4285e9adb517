// The calls of the peer that come over one session: each goes to the queue of its handler, and its
// answer back to the peer.
//
//   loop thread        on_request() -> HandlerQueue
//   handler's thread                                -> IncomingCall::run() -> handler -> reply()
//   loop thread                                     -> finish() -> MessageFlow::write()
//
// Threads: the loop thread; only IncomingCall is shared with the threads that run handlers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "rpc/agent.h"
#include "rpc/archive.h"
#include "rpc/detail/device_transfer.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/message_flow.h"
#include "rpc/detail/method_counters.h"
#include "rpc/detail/session_context.h"
#include "rpc/detail/session_host.h"
#include "rpc/loop/loop.h"
#include "rpc/network/message_pipe.h"

namespace retort::rpc::detail {

class IncomingCalls;

// A call of the peer. Whoever moves `stage` from kQueued owns what happens next.
struct IncomingCall : std::enable_shared_from_this<IncomingCall> {
  enum Stage { kQueued, kRunning, kDone };
  std::atomic<int> stage{kQueued};
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  CallContext context;
  explicit IncomingCall(CallContext c) : context(std::move(c)) {}
  std::optional<Deadline> queue_deadline;
  Message request;
  // Not the whole Handler: its queue holds calls that nobody has taken, which must not hold it.
  std::shared_ptr<const HandlerFunction> handler;
  std::weak_ptr<Session> session;
  IncomingCalls* calls = nullptr;  // of that session
  std::shared_ptr<Loop> loop;
  std::shared_ptr<DeviceTransfer> devices;  // may be null
  // The room of a large request; whoever drops the last of it lets the peer send more.
  std::shared_ptr<void> room;
  // The peer's counters take these.
  std::string method;
  uint64_t bytes_received = 0;  // of the request
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();

  bool start() {
    int queued = kQueued;
    return stage.compare_exchange_strong(queued, kRunning);
  }
  // Ends it where nobody else has begun it: what it carried goes now, while its job may stay in the
  // queue of handlers for as long as nobody takes that. False: it runs, or is over. The loop
  // thread.
  bool drop();
  void run();                          // on the handler's thread
  void reply(Outcome<Message> reply);  // from any thread
  ServedTimes times() const;           // once it has run, or where it never will
};

class IncomingCalls {
 public:
  IncomingCalls(SessionContext& context, MessageFlow& flow) : context_(context), flow_(flow) {}

  // Hands a request to its handler's queue, or answers that it cannot. kCorrupt and
  // kResourceExhausted for a peer that does not keep to the rules.
  void on_request(const Envelope& envelope, Message request, std::shared_ptr<void> room,
                  uint64_t bytes);
  // The answer of a call that has not been finished yet, nothing for others.
  void finish(uint64_t call_id, Outcome<Message> outcome, ServedTimes times = {});
  void on_cancel(uint64_t call_id);
  // The peer asks where its call stands.
  void on_ask(uint64_t call_id);
  bool empty() const { return calls_.empty(); }

  // Answers those that have not begun, as this side closes.
  void refuse_queued();
  // Running ones see the flag, queued ones never begin, and nobody is answered.
  void drop_all();

 private:
  std::shared_ptr<IncomingCall> add(const Envelope& envelope, Message request,
                                    std::shared_ptr<void> room, uint64_t bytes);
  // What the call cannot be served for; nullopt: it is in the queue of its handler, or has ended.
  std::optional<Error> begin(const Envelope& envelope, const std::shared_ptr<IncomingCall>& call);
  std::shared_ptr<WireMessage> answer(uint64_t call_id, Outcome<Message>& outcome,
                                      const ServedTimes& times);
  void keep_early_cancel(uint64_t call_id);

  SessionContext& context_;
  MessageFlow& flow_;
  std::unordered_map<uint64_t, std::shared_ptr<IncomingCall>> calls_;
  // Cancelled before the request came over its pipe: the last kMaxIncomingCalls ids, in their order
  // and to be found, since every request asks for its own.
  std::deque<uint64_t> early_order_;
  std::unordered_set<uint64_t> cancelled_early_;
};

}  // namespace retort::rpc::detail
