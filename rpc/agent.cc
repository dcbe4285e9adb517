#include "rpc/agent.h"

#include <utility>

#include "rpc/detail/agent_impl.h"

namespace retort::rpc {

Agent::Agent(Options options) : impl_(std::make_shared<Impl>(std::move(options))) {}

Agent::~Agent() { join(); }

std::string Agent::address() const { return impl_->address(); }

void Agent::connect(std::string_view peer, const std::string& address, Deadline deadline,
                    Attempts attempts) {
  impl_->connect(peer, address, deadline, attempts);
}

Future<Empty> Agent::start_connect(std::string_view peer, const std::string& address,
                                   Deadline deadline, Attempts attempts) {
  return impl_->start_connect(peer, address, deadline, attempts);
}

at::Device Agent::device() const { return impl_->options().device; }
std::string Agent::where(const std::string& peer) const { return impl_->where(peer); }

std::function<void()> Agent::call_bytes(std::string_view peer, MethodId method, Message message,
                                        CallOptions options,
                                        std::function<void(Outcome<Message>)> done) {
  return impl_->call(peer, method, std::move(message), options, std::move(done));
}

void Agent::serve_bytes(MethodId method, std::shared_ptr<HandlerQueue> queue,
                        std::function<void(Message, const CallContext&, Responder)> handler) {
  impl_->serve(method.name, {method.schema, std::move(queue),
                             std::make_shared<const detail::HandlerFunction>(std::move(handler))});
}

void Agent::on_peer_lost(
    std::function<void(const std::string& peer, const std::string& reason)> callback) {
  impl_->on_peer_lost(std::move(callback));
}

std::vector<std::string> Agent::peers() const { return impl_->peers(); }
PeerStats Agent::stats(std::string_view peer) const { return impl_->stats(peer); }
uint64_t Agent::vain_looks() const { return impl_->vain_looks(); }
std::vector<MethodTraffic> Agent::method_stats() const { return impl_->method_stats(); }
void Agent::close() { impl_->close(); }
void Agent::join() { impl_->join(); }

}  // namespace retort::rpc
