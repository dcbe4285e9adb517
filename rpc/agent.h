// A process's end of the RPC layer: named peers, typed calls with tensors, deadlines, typed errors.
//
// Use:
//   rpc::Agent agent({.name = "student/0", .secret = secret, .rpc = options});
//   agent.serve(kForward, queue, [&](ForwardRequest r, const rpc::CallContext& c) {
//     return teacher.forward(r);
//   });
//   agent.connect("teacher/0", "127.0.0.1:41234", Deadline::after(60s));
//   Future<ForwardReply> reply = agent.call("teacher/0", kForward, request, {.timeout = 60s});
//   ForwardReply r = reply.get();
//
// Ending: close() is idempotent and returns at once. join() waits until every accepted call has
//   completed with a value or an error and all threads have ended. The destructor does both.
// Memory: tensors are sent from the memory they are in: do not change them before the future is
//   ready. After an error (a deadline, a cancellation) they may still be read: change nothing of
//   them then. PeerStats::inflight_bytes falls when they are free.
// Devices: a tensor on a device goes to the device that rpc.device_maps names for the peer's role,
//   after all that the calling thread's current stream has queued by then; what arrives is
//   complete. A tensor without elements arrives on the CPU. Nothing is copied to host memory
//   unasked: a device without an entry is an error. A stream other than the device's default one
//   needs use_on_current_stream first.
// Threads: every public member may be called from any thread except the agent's own loop thread.
//   call() may be called from there too (in a function given to then()), and then it never waits
//   for credit: it is sent beyond it. Handlers run on the thread that drains the HandlerQueue they
//   were registered with (the compute thread), never on the loop thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bounded_queue.h"
#include "base/deadline.h"
#include "base/future.h"
#include "rpc/archive.h"
#include "rpc/device_transfer.h"
#include "rpc/method.h"
#include "rpc/method_stats.h"
#include "rpc/options.h"
#include "rpc/schema.h"

namespace retort::rpc {

namespace detail {
class Network;
}  // namespace detail

// When the work on a call began, on which its caller's timeout counts. Any thread.
class CallClock {
 public:
  using Clock = std::chrono::steady_clock;
  void begin() { began_ = Clock::now().time_since_epoch().count(); }
  // It waits, in whatever queue; begin() follows.
  void wait() { began_ = 0; }
  // nullopt: it waits.
  std::optional<Clock::duration> running() const {
    const Clock::rep began = began_;
    if (began == 0) return std::nullopt;
    return Clock::now().time_since_epoch() - Clock::duration(began);
  }

 private:
  std::atomic<Clock::rep> began_{0};
};

// What a handler knows about the call it serves.
struct CallContext {
  std::string peer;  // the caller, e.g. "student/0"
  uint64_t call_id = 0;
  // Becomes true when the caller cancels the call or is lost.
  std::shared_ptr<const std::atomic<bool>> cancelled;
  // Begins with the handler. One that answers later says with wait() that the work has not begun,
  // and with begin() that it has.
  std::shared_ptr<CallClock> clock = std::make_shared<CallClock>();
  // Which process of that name: another one each time it was started.
  std::string process;
};

// Work handed from the loop thread to the thread that runs handlers.
using HandlerQueue = BoundedQueue<std::function<void()>>;

struct CallOptions {
  std::chrono::milliseconds timeout{0};        // 0: RpcOptions::timeout
  std::chrono::milliseconds queue_timeout{0};  // 0: RpcOptions::queue_timeout
  // When max_inflight_bytes or max_inflight_calls is reached, a call waits; if false, it fails with
  // kResourceExhausted.
  bool wait_for_credit = true;
};

struct PeerStats {
  // Payloads and tensors of the data messages.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t calls = 0;
  // Quantiles of the last 1024 completed calls.
  double latency_p50_ms = 0;
  double latency_p99_ms = 0;
  uint64_t inflight_bytes = 0;
};

class Agent {
 public:
  struct Options {
    std::string name;    // "student/0"
    std::string secret;  // the run's secret; both ends prove on every connection that they know it
    // The run's id, which the proof covers: agents of two runs that have one secret are strangers.
    std::string run = {};
    RpcOptions rpc;
    // How often the process of this name was started again. Peers turn away an agent that is older
    // than one they have met: a process that was replaced while it could not be reached.
    uint64_t restart = 0;
    // This comes from load_device_transfer(). Null: only tensors on the CPU can be sent.
    std::shared_ptr<detail::DeviceTransfer> devices;
    // Where this process computes: that device is the agent's thread's too.
    at::Device device = at::kCPU;
    // What carries the connections. Null: TCP, as `rpc` says; a simulation brings its own.
    std::shared_ptr<detail::Network> network;
  };

  explicit Agent(Options options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // "host:port", as rpc.advertise says: the only address that others need to know.
  std::string address() const;

  // Connects to a peer, with proof of the secret both ways; with kAgain tries a connection that was
  // refused again until the deadline. When it returns, either side can call the other.
  //
  // An agent cannot connect to itself: its own words that come back are refused.
  //
  // Errors: kUnauthenticated or kCorrupt (whoever answers there has not proved that it is this peer
  //   of this run: wrong secret or name, another version that says so, somebody in between, another
  //   program), at once, because another address is more likely to help than another attempt;
  //   kMismatch (the peer, which knows the secret, is another program), kTimeout, kPeerLost.
  enum class Attempts { kOnce, kAgain };
  void connect(std::string_view peer, const std::string& address, Deadline deadline,
               Attempts attempts = Attempts::kAgain);
  // The same without waiting, on any thread. Cancelled by the future, it ends with kCancelled.
  Future<Empty> start_connect(std::string_view peer, const std::string& address, Deadline deadline,
                              Attempts attempts = Attempts::kAgain);
  // Options::device: threads that run handlers of tensors there make it their own
  // (use_device_in_thread).
  at::Device device() const;
  // Where this peer was reached last; empty: this agent never dialed it.
  std::string where(const std::string& peer) const;

  // Sends a request. Returns at once, unless it must wait for credit.
  //
  // Errors: the future fails with the remote Error (its own code), kTimeout (the handler ran for
  //   `timeout`, or did not begin within `queue_timeout`), kPeerLost, kCancelled
  //   (Future::cancel), kClosed, kResourceExhausted, kInvalidArgument (a tensor on a device without
  //   an entry in the map), kUnavailable (no such method), kMismatch (the peer's program has other
  //   types for this method). A request that cannot be encoded throws here.
  template <class Request, class Reply>
  Future<Reply> call(std::string_view peer, const Method<Request, Reply>& method,
                     const std::type_identity_t<Request>& request, CallOptions options = {}) {
    Promise<Reply> promise;
    auto future = promise.future();
    auto cancel = call_bytes(peer, {method.name, method_schema(method)}, encode(request), options,
                             [promise](Outcome<Message> outcome) mutable {
                               if (outcome.error) {
                                 promise.set_error(outcome.error);
                                 return;
                               }
                               try {
                                 promise.set_value(decode<Reply>(std::move(*outcome.value)));
                               } catch (...) {
                                 promise.set_error(std::current_exception());
                               }
                             });
    promise.on_cancel(std::move(cancel));
    return future;
  }

  // Registers a handler; each call is pushed to `queue` as one job. A handler that returns a
  // Future<Reply> answers later: the reply is encoded and sent on the thread that completes the
  // future, and other jobs of the queue run meanwhile.
  //
  // Errors: an Error thrown by the handler travels with its code; any other exception arrives as
  //   kRemote. A full queue answers kResourceExhausted, a future that is dropped unfinished
  //   kClosed.
  template <class Request, class Reply, class Handler>
  void serve(const Method<Request, Reply>& method, std::shared_ptr<HandlerQueue> queue,
             Handler handler) {
    using Result = std::invoke_result_t<Handler&, Request, const CallContext&>;
    serve_bytes(
        {method.name, method_schema(method)}, std::move(queue),
        [handler](Message request, const CallContext& context, Responder respond) mutable {
          if constexpr (future_detail::kIsFuture<Result>) {
            handler(decode<Request>(std::move(request)), context)
                .on_outcome(
                    [respond](Outcome<Reply> outcome) { respond(encoded(std::move(outcome))); });
          } else {
            respond(Outcome<Message>{
                encode(static_cast<Reply>(handler(decode<Request>(std::move(request)), context))),
                nullptr});
          }
        });
  }

  // `callback` is called each time a peer is lost or says goodbye, also for peers that connected to
  // us, until this agent is closed. It runs on the loop thread and must not block.
  void on_peer_lost(
      std::function<void(const std::string& peer, const std::string& reason)> callback);
  std::vector<std::string> peers() const;
  PeerStats stats(std::string_view peer) const;
  // How often the loop thread looked for events in vain where it would have slept without
  // RpcOptions::spin.
  uint64_t vain_looks() const;
  // The traffic of every method that was called here or served, for each peer there ever was.
  std::vector<MethodTraffic> method_stats() const;

  void close();
  void join();

 private:
  // A method without its types.
  struct MethodId {
    std::string_view name;
    uint64_t schema = 0;  // method_schema()
  };
  // `done` runs exactly once. Returns what cancels the call.
  std::function<void()> call_bytes(std::string_view peer, MethodId method, Message message,
                                   CallOptions options, std::function<void(Outcome<Message>)> done);
  // Takes the answer of one call, exactly once, on any thread.
  using Responder = std::function<void(Outcome<Message>)>;
  void serve_bytes(MethodId method, std::shared_ptr<HandlerQueue> queue,
                   std::function<void(Message, const CallContext&, Responder)> handler);
  template <class Reply>
  static Outcome<Message> encoded(Outcome<Reply> outcome) {
    if (outcome.error) return {std::nullopt, outcome.error};
    try {
      return {encode(*outcome.value), nullptr};
    } catch (...) {
      return {std::nullopt, std::current_exception()};
    }
  }
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace retort::rpc
