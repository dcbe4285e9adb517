#include "rpc/detail/goodbye.h"

#include <chrono>
#include <cstdint>

#include "base/error.h"
#include "base/future.h"
#include "rpc/archive.h"
#include "rpc/detail/frames.h"

namespace retort::rpc::detail {
namespace {

constexpr std::chrono::milliseconds kGoodbyeTimeout{1000};

}  // namespace

void Goodbye::say() {
  if (!context_.up()) return context_.fail(Error(ErrorCode::kClosed, "the agent is closed"));
  if (said_) return;
  said_ = true;
  context_.send_frame(FrameType::kBye,
                      Farewell{static_cast<uint8_t>(ErrorCode::kClosed), "closed"});
  timer_.expires_after(kGoodbyeTimeout);
  timer_.async_wait(
      [this, self = context_.shared_from_this()](const boost::system::error_code& code) {
        if (!code) context_.fail(Error(ErrorCode::kClosed, "the agent is closed"));
      });
}

bool Goodbye::on_acknowledged() {
  if (said_) context_.fail(Error(ErrorCode::kClosed, "the agent is closed"));
  return said_;
}

void Goodbye::on_farewell(std::string_view body, bool calls_left) {
  const auto farewell = from_bytes<Farewell>(body);
  const ErrorCode code = checked_code(farewell.code);
  // A farewell with an error means that the peer refuses to go on, or to begin, which another
  // attempt may not change.
  if (code != ErrorCode::kClosed) {
    const bool began = context_.phase() >= SessionContext::Phase::kUp;
    return context_.fail(Error(began ? ErrorCode::kPeerLost : code,
                               "the other side dropped the connection: " + farewell.reason)
                             .with("code", to_string(code)));
  }

  // Replies may still be on their way over the pipes, so this side waits for them, a little.
  peer_leaving_ = true;
  timer_.expires_after(kGoodbyeTimeout / 2);
  timer_.async_wait(
      [this, self = context_.shared_from_this()](const boost::system::error_code& stopped) {
        if (!stopped) context_.fail(Error(ErrorCode::kPeerLost, "the other side closed its agent"));
      });
  acknowledge_unless(calls_left);
}

void Goodbye::acknowledge_unless(bool calls_left) {
  if (!peer_leaving_ || context_.dead() || calls_left) return;
  context_.send_frame(FrameType::kByeAck, Empty{});
  context_.fail(Error(ErrorCode::kPeerLost, "the other side closed its agent"));
}

}  // namespace retort::rpc::detail
