#include "rpc/transport/detail/listener.h"

#include <utility>

#include "rpc/transport/detail/connection.h"
#include "rpc/transport/detail/context.h"

namespace retort::rpc::transport {

void ListenerCore::accept(AcceptHandler handler) {
  if (closed_) return handler(connection_error("the listener is closed"), nullptr);
  if (ready_.empty()) return waiting_.push_back(std::move(handler));
  auto connection = std::move(ready_.front());
  ready_.pop_front();
  handler(tensorpipe::Error::kSuccess, std::move(connection));
}

void ListenerCore::deliver(const std::shared_ptr<ConnectionCore>& connection,
                           std::shared_ptr<Stream> stream) {
  // The connection drops this function when it fails, which ends the circle of references.
  connection->attach_accepted(
      std::move(stream), [self = shared_from_this(), connection] { self->hand_over(connection); });
}

void ListenerCore::hand_over(std::shared_ptr<ConnectionCore> connection) {
  if (closed_) return connection->fail(connection_error("the listener is closed"));
  auto handle = std::make_shared<Connection>(std::move(connection));
  if (waiting_.empty()) return ready_.push_back(std::move(handle));
  const AcceptHandler handler = std::move(waiting_.front());
  waiting_.pop_front();
  handler(tensorpipe::Error::kSuccess, std::move(handle));
}

void ListenerCore::close() {
  if (std::exchange(closed_, true)) return;
  ready_.clear();
  for (const auto& handler : std::exchange(waiting_, {}))
    handler(connection_error("the listener is closed"), nullptr);
}

Listener::Listener(std::shared_ptr<Context> context, std::shared_ptr<ListenerCore> core)
    : context_(std::move(context)), core_(std::move(core)) {}

void Listener::accept(accept_callback_fn fn) {
  context_->run_on_loop_or_here(
      [core = core_, fn = std::move(fn)]() mutable { core->accept(std::move(fn)); });
}

std::string Listener::addr() const { return session_address(core_->session()); }

void Listener::close() {
  context_->run_on_loop_or_here([context = context_, core = core_] {
    context->forget_listener(core);
    core->close();
  });
}

}  // namespace retort::rpc::transport
