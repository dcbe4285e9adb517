// One connection to one peer: a proved control connection, two pipes, the calls in both directions,
// heartbeats, and one way to end, fail(). Lives on the loop thread; only IncomingCall is shared
// with the threads that run handlers.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/agent.h"
#include "rpc/detail/control_socket.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/data_plane.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/loop.h"
#include "rpc/detail/method_counters.h"
#include "rpc/detail/peer_state.h"
#include "rpc/detail/receive_budget.h"
#include "rpc/detail/send_window.h"
#include "rpc/transport/dial.h"

namespace retort::rpc::detail {

class Session;

// Answers through the function it is given, now or later, or throws.
using HandlerFunction =
    std::function<void(Message, const CallContext&, std::function<void(Outcome<Message>)>)>;

struct Handler {
  uint64_t schema = 0;  // method_schema() where it is served
  std::shared_ptr<HandlerQueue> queue;
  std::shared_ptr<const HandlerFunction> run;
};

Outcome<Message> failed(Error error);

// A call of ours. Ends by finish(), once, on the loop thread.
struct OutgoingCall {
  uint64_t id = 0;
  std::string method;
  std::chrono::milliseconds timeout{0};    // from the start of the handler
  std::optional<Deadline> queue_deadline;  // for that start
  std::chrono::steady_clock::time_point next_look{};
  std::shared_ptr<WireMessage> message;
  std::shared_ptr<PeerState> peer;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::function<void(Outcome<Message>)> done;
  std::weak_ptr<Session> session;
  // For the peer's counters.
  std::chrono::nanoseconds waited{0};  // for credit
  EndedCall::How how = EndedCall::How::kFailed;
  ServedTimes served;           // as the reply says
  uint64_t bytes_received = 0;  // of the reply

  void finish(Outcome<Message> outcome);
  void fail(const Error& error);
  EndedCall ended(const WireMessage& request, std::chrono::nanoseconds latency) const;
};

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
  std::shared_ptr<Loop> loop;
  std::shared_ptr<DeviceTransfer> devices;  // may be null
  // The room of a large request; whoever drops the last of it lets the peer send more.
  std::shared_ptr<void> room;
  // For the peer's counters.
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

// What a session needs of its agent. Called on the loop thread.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual const Agent::Options& options() const = 0;
  virtual const std::string& incarnation() const = 0;
  virtual std::shared_ptr<Loop> loop() = 0;
  virtual DataPlane& data() = 0;
  // A new attempt to reach a port, not yet started.
  virtual std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) = 0;
  virtual ReceiveBudget& receive_budget() = 0;
  virtual bool closing() const = 0;
  // kMismatch for a process whose successor was met already.
  virtual void admit(const std::string& peer, uint64_t restart) = 0;
  // Null if no such method is served.
  virtual std::shared_ptr<const Handler> handler(const std::string& method) const = 0;
  virtual std::shared_ptr<PeerState> peer_state(const std::string& peer) = 0;
  // A new session that the host keeps until session_down().
  virtual void session_begins(const std::shared_ptr<Session>& session) = 0;
  virtual void session_up(const std::shared_ptr<Session>& session) = 0;
  // Once for every session, up or not.
  virtual void session_down(const std::shared_ptr<Session>& session, const Error& reason) = 0;
  // A call or a write came to its end: a drain may be complete.
  virtual void session_idle() = 0;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // `stream` is proved. `dialed`: where the peer's port is, if this side is the client. `host` must
  // outlive the session's end.
  Session(SessionHost& host, std::shared_ptr<transport::Stream> stream, transport::Proven proven,
          std::optional<PeerAddress> dialed);

  void start();
  // `settled` runs once: with null when the session is up, or with the reason why it will not be.
  void on_settled(std::function<void(const Error*)> settled) { on_settled_ = std::move(settled); }
  const std::string& peer() const { return proven_.peer; }
  const std::string& peer_incarnation() const { return theirs_.incarnation; }
  bool up() const { return phase_ == Phase::kUp; }
  // Up, and the peer has not said goodbye.
  bool takes_calls() const { return up() && !peer_leaving_; }

  void send(const std::shared_ptr<OutgoingCall>& call);
  void cancel(uint64_t call_id, const Error& error);
  void finish_incoming(uint64_t call_id, Outcome<Message> reply, ServedTimes times = {});

  // Graceful end: refuse what has not begun; say_goodbye() once idle.
  void refuse_queued();
  bool idle() const { return outgoing_.empty() && incoming_.empty() && writes_ == 0; }
  void cancel_all(const Error& error);
  void say_goodbye();
  void fail(const Error& reason);

 private:
  enum class Phase { kIntroduction, kPipes, kUp, kDead };

  // session_setup.cc
  void on_frame(FrameType type, std::string_view body);
  void say_ready();
  void on_ready(std::string_view body);
  void listen_for_pipes();  // server
  void on_accepted(const std::shared_ptr<MessagePipe>& pipe);
  void connect_pipes();  // client
  void add_candidate(const std::shared_ptr<MessagePipe>& pipe);
  void add_pipe(uint32_t index, std::shared_ptr<MessagePipe> pipe);
  void refuse(const Error& error);

  // session_flow.cc
  std::function<void(uint64_t)> tell_room(FrameType type, BulkKind kind) const;
  void open_windows();
  void open_accounts();
  bool owes_room() const;
  void on_room(FrameType type, const Room& room);
  void read_pipe(uint32_t index);
  std::shared_ptr<void> take_room(BulkKind kind, uint64_t bytes);
  void write(BulkKind kind, uint64_t call_id, std::shared_ptr<WireMessage> message);
  void write_to(uint32_t index, std::shared_ptr<const WireMessage> message);
  SendWindow& window(BulkKind kind) { return *windows_[static_cast<size_t>(kind)]; }
  ReceiveAccount& account(BulkKind kind) { return *accounts_[static_cast<size_t>(kind)]; }

  // session.cc
  void go_up();
  void tick();
  std::shared_ptr<OutgoingCall> take_outgoing(uint64_t call_id);
  void on_message(WireMessage message);
  void on_reply(const Envelope& envelope, Message reply, uint64_t bytes);
  void on_request(const Envelope& envelope, Message request, std::shared_ptr<void> room,
                  uint64_t bytes);

  // session_looks.cc
  void look_at(OutgoingCall& call, std::chrono::steady_clock::time_point when);
  void arm_looks();
  void look_after(OutgoingCall& call);
  void on_ask(uint64_t call_id);
  void on_standing(const Standing& standing);

  // session_end.cc, with what refuses, cancels and ends above
  void on_control(FrameType type, std::string_view body);
  void on_cancel(uint64_t call_id);
  void on_farewell(std::string_view body);
  void maybe_acknowledge_goodbye();
  void drop_incoming();
  Error lost_error(const Error& reason) const;

  SessionHost& host_;
  const std::shared_ptr<Loop> loop_;
  const transport::Proven proven_;
  const std::optional<PeerAddress> dialed_;
  const std::shared_ptr<ControlSocket> control_;
  Phase phase_ = Phase::kIntroduction;
  Ready theirs_;
  boost::asio::steady_timer timer_;       // deadline of the set-up, then heartbeats
  boost::asio::steady_timer look_timer_;  // next look at an outgoing call
  boost::asio::steady_timer goodbye_timer_;

  std::shared_ptr<PipeListener> listener_;
  std::vector<std::shared_ptr<MessagePipe>> candidates_;  // have not said which pipe they are
  std::array<std::shared_ptr<MessagePipe>, 2> pipes_;     // small, bulk

  // Large messages, by kind: what we may send, what the peer may send.
  std::array<std::unique_ptr<SendWindow>, kNumBulkKinds> windows_;
  std::array<std::shared_ptr<ReceiveAccount>, kNumBulkKinds> accounts_;

  std::shared_ptr<PeerState> state_;
  std::chrono::steady_clock::time_point last_heard_{}, last_tick_{};
  std::unordered_map<uint64_t, std::shared_ptr<OutgoingCall>> outgoing_;
  std::set<std::pair<std::chrono::steady_clock::time_point, uint64_t>> looks_;
  std::unordered_map<uint64_t, std::shared_ptr<IncomingCall>> incoming_;
  // cancelled before the request came over its pipe; the last 1,024
  std::deque<uint64_t> cancelled_early_;
  size_t writes_ = 0;
  std::function<void(const Error*)> on_settled_;
  int owed_ticks_ = 0;  // heartbeats since the peer was asked for room back
  bool peer_leaving_ = false, said_goodbye_ = false;
};

}  // namespace retort::rpc::detail
