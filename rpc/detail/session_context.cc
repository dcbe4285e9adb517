#include "rpc/detail/session_context.h"

#include <cstdint>
#include <exception>

namespace retort::rpc::detail {

Outcome<Message> failed(Error error) {
  Outcome<Message> outcome;
  outcome.error = std::make_exception_ptr(std::move(error));
  return outcome;
}

SessionContext::SessionContext(SessionHost& host, std::shared_ptr<transport::Stream> stream,
                               transport::Proven proven)
    : host_(host),
      loop_(host.loop()),
      proven_(std::move(proven)),
      control_(std::make_shared<ControlSocket>(loop_->io(), std::move(stream))) {}

void SessionContext::refuse(const Error& error) {
  if (dead()) return;
  send_frame(FrameType::kBye,
             Farewell{static_cast<uint8_t>(error.code()), error.message().substr(0, 1024)});
  fail(error);
}

}  // namespace retort::rpc::detail
