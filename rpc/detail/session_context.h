// What the parts of one session share: the agent it belongs to, the peer, the control connection,
// how far the session has come, and its one way to end.
//
// Threads: the loop thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/future.h"
#include "rpc/archive.h"
#include "rpc/detail/control_socket.h"
#include "rpc/detail/frames.h"
#include "rpc/detail/peer_state.h"
#include "rpc/detail/session_host.h"
#include "rpc/loop/loop.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::detail {

Outcome<Message> failed(Error error);

// A base of Session, which alone moves it on. What a part starts holds shared_from_this(): the part
// lives as long as its session.
class SessionContext : public std::enable_shared_from_this<Session> {
 public:
  enum class Phase { kIntroduction, kPipes, kUp, kDead };

  virtual ~SessionContext() = default;
  SessionContext(const SessionContext&) = delete;
  SessionContext& operator=(const SessionContext&) = delete;

  SessionHost& host() const { return host_; }
  const std::shared_ptr<Loop>& loop() const { return loop_; }
  const std::shared_ptr<ControlSocket>& control() const { return control_; }
  template <class Body>
  void send_frame(FrameType type, const Body& body) {
    control_->send(frame_bytes(type, body));
  }

  const transport::Proven& proven() const { return proven_; }
  const std::string& peer() const { return proven_.peer; }
  // What the peer has said of itself; from Phase::kPipes on.
  const Ready& theirs() const { return theirs_; }
  const std::string& peer_incarnation() const { return theirs_.incarnation; }
  // From Phase::kUp on.
  PeerState& peer_state() const { return *state_; }

  Phase phase() const { return phase_; }
  bool up() const { return phase_ == Phase::kUp; }
  bool dead() const { return phase_ == Phase::kDead; }

  // Ends the session; nothing if it has ended.
  virtual void fail(const Error& reason) = 0;
  // Tells the peer why, then ends.
  void refuse(const Error& error);

 protected:
  SessionContext(SessionHost& host, std::shared_ptr<transport::Stream> stream,
                 transport::Proven proven);
  void enter(Phase phase) { phase_ = phase; }
  void set_theirs(Ready ready) { theirs_ = std::move(ready); }
  void set_peer_state(std::shared_ptr<PeerState> state) { state_ = std::move(state); }

 private:
  SessionHost& host_;
  const std::shared_ptr<Loop> loop_;
  const transport::Proven proven_;
  const std::shared_ptr<ControlSocket> control_;
  Phase phase_ = Phase::kIntroduction;
  Ready theirs_;
  std::shared_ptr<PeerState> state_;
};

}  // namespace retort::rpc::detail
