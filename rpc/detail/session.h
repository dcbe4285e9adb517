// One connection to one peer: handshake on the control socket, two pipes, the calls in both
// directions, heartbeats, and one way to end, fail(). Lives on the loop thread; only IncomingCall
// is shared with the threads that run handlers.
#pragma once

#include <tensorpipe/core/context.h>
#include <tensorpipe/core/listener.h>

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/agent.h"
#include "rpc/detail/control_socket.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/loop.h"
#include "rpc/detail/peer_state.h"

namespace retort::rpc::detail {

class Session;

struct Handler {
  std::shared_ptr<HandlerQueue> queue;
  // Answers through the function it is given, now or later, or throws.
  std::function<void(Message, const CallContext&, std::function<void(Outcome<Message>)>)> run;
};

// A call of ours. Ends by finish(), once, on the loop thread.
struct OutgoingCall {
  explicit OutgoingCall(Deadline d) : deadline(d) {}
  uint64_t id = 0;
  std::string method;
  const Deadline deadline;
  std::shared_ptr<const WireMessage> message;
  std::shared_ptr<PeerState> peer;  // its credit is given back by finish()
  uint64_t credit_bytes = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::function<void(Outcome<Message>)> done;
  std::weak_ptr<Session> session;

  void finish(Outcome<Message> outcome);
  void fail(const Error& error);
};

// A call of the peer. Whoever moves `stage` from kQueued owns what happens next.
struct IncomingCall : std::enable_shared_from_this<IncomingCall> {
  enum Stage { kQueued, kRunning, kDone };
  std::atomic<int> stage{kQueued};
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  CallContext context;
  explicit IncomingCall(CallContext c) : context(std::move(c)) {}
  Message request;
  std::shared_ptr<const Handler> handler;
  std::weak_ptr<Session> session;
  std::shared_ptr<Loop> loop;
  std::shared_ptr<DeviceTransfer> devices;  // may be null

  bool start() {
    int queued = kQueued;
    return stage.compare_exchange_strong(queued, kRunning);
  }
  void run();                          // on the handler's thread
  void reply(Outcome<Message> reply);  // from any thread
};

// What a session needs of its agent. Called on the loop thread.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual const Agent::Options& options() const = 0;
  virtual const std::string& incarnation() const = 0;
  virtual std::shared_ptr<Loop> loop() = 0;
  virtual tensorpipe::Context& transport() = 0;
  virtual std::shared_ptr<ReceivePool> receive_pool() = 0;
  virtual bool closing() const = 0;
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
  // Client when `target` is not empty. `host` must outlive the session's end.
  Session(SessionHost& host, boost::asio::ip::tcp::socket socket, std::string target);

  void start();
  // `settled` runs once: with null when the session is up, or with the reason why it will not be.
  void on_settled(std::function<void(const Error*)> settled) { on_settled_ = std::move(settled); }
  const std::string& peer() const { return theirs_.name; }
  const std::string& peer_incarnation() const { return theirs_.incarnation; }
  bool up() const { return phase_ == Phase::kUp; }
  bool dead() const { return phase_ == Phase::kDead; }
  bool authenticated() const { return phase_ >= Phase::kPipes; }
  // Up, and the peer has not said goodbye.
  bool takes_calls() const { return up() && !peer_leaving_; }

  void send(const std::shared_ptr<OutgoingCall>& call);
  void cancel(uint64_t call_id, const Error& error);
  void finish_incoming(uint64_t call_id, Outcome<Message> reply);

  // Graceful end: refuse what has not begun; say_goodbye() once idle.
  void refuse_queued();
  bool idle() const { return outgoing_.empty() && incoming_.empty() && writes_ == 0; }
  void cancel_all(const Error& error);
  void say_goodbye();
  void fail(const Error& reason);

 private:
  enum class Phase { kHello, kProof, kPipes, kUp, kDead };

  // session_handshake.cc
  void on_frame(FrameType type, std::string_view body);
  void on_handshake_frame(FrameType type, std::string_view body);
  void on_hello(std::string_view body);      // server
  void on_challenge(std::string_view body);  // client
  void on_proof(std::string_view body);      // server
  void on_listen(std::string_view body);     // client
  std::string mac(std::string_view prover) const;
  void open_listener();
  void accept_pipe();
  void on_accepted(std::shared_ptr<tensorpipe::Pipe> pipe);
  void connect_pipes(const Listen& listen);
  void add_pipe(uint32_t index, std::shared_ptr<DataPipe> pipe);
  void refuse(const Error& error);

  // session.cc
  void go_up();
  void tick();
  void arm_deadlines();
  void read_pipe(uint32_t index);
  void on_message(WireMessage message);
  void on_request(const Envelope& envelope, Message request);
  void on_control(FrameType type, std::string_view body);
  void write(std::shared_ptr<const WireMessage> message);
  std::shared_ptr<OutgoingCall> take_outgoing(uint64_t call_id);
  void maybe_acknowledge_goodbye();
  Error lost_error(const Error& reason) const;

  SessionHost& host_;
  const std::shared_ptr<Loop> loop_;
  const std::string target_;
  const std::shared_ptr<ControlSocket> control_;
  Phase phase_ = Phase::kHello;
  Hello ours_, theirs_;
  boost::asio::steady_timer timer_;           // handshake deadline, then heartbeats
  boost::asio::steady_timer deadline_timer_;  // earliest deadline of outgoing calls
  boost::asio::steady_timer goodbye_timer_;

  std::string token_;
  std::shared_ptr<tensorpipe::Listener> listener_;
  std::vector<std::shared_ptr<DataPipe>> candidates_;  // accepted, not yet proved
  int accepts_left_ = 16;
  std::array<std::shared_ptr<DataPipe>, 2> pipes_;  // small, bulk

  std::shared_ptr<PeerState> state_;
  std::chrono::steady_clock::time_point last_heard_{}, last_tick_{};
  std::unordered_map<uint64_t, std::shared_ptr<OutgoingCall>> outgoing_;
  std::set<std::pair<std::chrono::steady_clock::time_point, uint64_t>> deadlines_;
  std::unordered_map<uint64_t, std::shared_ptr<IncomingCall>> incoming_;
  // cancelled before the request came over its pipe; the last 1,024
  std::deque<uint64_t> cancelled_early_;
  size_t writes_ = 0;
  std::function<void(const Error*)> on_settled_;
  bool peer_leaving_ = false, said_goodbye_ = false;
};

}  // namespace retort::rpc::detail
