#include "rpc/detail/pipe_setup.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "rpc/archive.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/frames.h"
#include "rpc/transport/caught_error.h"

namespace retort::rpc::detail {
namespace {

std::shared_ptr<const WireMessage> pipe_hello(uint32_t index) {
  auto message = std::make_shared<WireMessage>();
  message->payload = to_bytes(PipeHello{index});
  return message;
}

}  // namespace

void PipeSetup::listen() {
  listener_ = context_.host().data().listen(
      context_.proven().session, pipes_.size(),
      [this, self = context_.shared_from_this()](const std::optional<Error>& error,
                                                 const std::shared_ptr<MessagePipe>& pipe) {
        if (over()) {
          if (pipe) pipe->close();
          return;
        }
        if (error) return context_.fail(*error);
        on_accepted(pipe);
      });
}

void PipeSetup::on_accepted(const std::shared_ptr<MessagePipe>& pipe) {
  add_candidate(pipe);

  // The pipe keeps this function until its read has ended, so the function holds the pipe weakly.
  pipe->read(kPipeHelloBytes, [this, self = context_.shared_from_this(),
                               weak = std::weak_ptr<MessagePipe>(pipe)](WireMessage message) {
    const auto candidate = weak.lock();
    if (!candidate || over()) return;
    try {
      const auto hello = from_bytes<PipeHello>(message.payload);
      if (hello.index >= pipes_.size() || pipes_[hello.index])
        throw Error(ErrorCode::kCorrupt, "a pipe of a session has an impossible place")
            .with("index", hello.index);
      // The pipe is added before the answer leaves: when the client's connect() returns, this side
      // takes calls too.
      add_pipe(hello.index, candidate);
      candidate->write(pipe_hello(hello.index), [] {});
    } catch (...) {
      context_.refuse(transport::caught_error());
    }
  });
}

void PipeSetup::connect() {
  for (uint32_t index = 0; index < pipes_.size(); ++index) {
    // Each end says which of the two pipes it means, because they may be accepted in any order.
    const auto pipe = context_.host().data().connect(context_.proven().session, context_.peer());
    add_candidate(pipe);
    pipe->write(pipe_hello(index), [] {});
    pipe->read(kPipeHelloBytes, [this, self = context_.shared_from_this(), index,
                                 weak = std::weak_ptr<MessagePipe>(pipe)](WireMessage message) {
      const auto candidate = weak.lock();
      if (!candidate || over()) return;
      try {
        if (from_bytes<PipeHello>(message.payload).index != index)
          throw Error(ErrorCode::kCorrupt, "the two ends of a pipe disagree which one it is");
        add_pipe(index, candidate);
      } catch (...) {
        context_.refuse(transport::caught_error());
      }
    });
  }
}

void PipeSetup::add_candidate(const std::shared_ptr<MessagePipe>& pipe) {
  // The handler stays for as long as the session lasts: its pipes are what was a candidate once.
  pipe->set_on_error(
      [this, self = context_.shared_from_this()](const Error& error) { context_.refuse(error); });
  candidates_.push_back(pipe);
}

void PipeSetup::add_pipe(uint32_t index, std::shared_ptr<MessagePipe> pipe) {
  pipes_[index] = std::move(pipe);
  if (!pipes_[0] || !pipes_[1]) return;
  // Every connection that the pipes need stands now: each has carried its first message.
  if (listener_) listener_->close();
  listener_.reset();
  candidates_.clear();
  ready_(std::exchange(pipes_, {}));
}

void PipeSetup::close() {
  if (listener_) listener_->close();
  for (const auto& pipe : candidates_)
    pipe->close();
  for (const auto& pipe : pipes_)
    if (pipe) pipe->close();
  candidates_.clear();
}

}  // namespace retort::rpc::detail
