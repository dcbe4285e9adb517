#include "rpc/transport/detail/context.h"

#include <utility>
#include <vector>

#include "rpc/transport/detail/connection.h"
#include "rpc/transport/detail/connection_core.h"
#include "rpc/transport/detail/listener.h"

namespace retort::rpc::transport {
namespace {

constexpr std::string_view kSessionScheme = "session:";

}  // namespace

std::string session_address(std::string_view session) {
  return std::string(kSessionScheme) + std::string(session);
}

std::string session_of(std::string_view address) {
  if (!address.starts_with(kSessionScheme)) return {};
  return std::string(address.substr(kSessionScheme.size()));
}

std::string channel_of(std::string_view id) {
  constexpr std::string_view kMark = ".ch_";
  const size_t mark = id.rfind(kMark);
  if (mark == std::string_view::npos) return {};
  const std::string_view channel = id.substr(mark + kMark.size());
  return std::string(channel.substr(0, channel.rfind('_')));
}

Context::Context(std::shared_ptr<rpc::detail::Loop> loop, ContextOptions options,
                 std::shared_ptr<Dialer> dialer)
    : loop_(std::move(loop)), options_(options), dialer_(std::move(dialer)) {}

Context::~Context() = default;

std::shared_ptr<ConnectionCore> Context::new_connection(const std::string& session) {
  auto connection = std::make_shared<ConnectionCore>(shared_from_this(), session);
  {
    std::lock_guard lock(mutex_);
    if (!closed_) {
      connections_.insert(connection);
      return connection;
    }
  }
  connection->finish_unused(connection_error("the transport is closed"));
  return connection;
}

std::shared_ptr<tensorpipe::transport::Connection> Context::connect(std::string address) {
  const std::string session = session_of(address);
  auto connection = new_connection(session);
  auto handle = std::make_shared<Connection>(connection);
  // TensorPipe may call from any thread, and dials belong to the loop.
  run_on_loop_or_here([self = shared_from_this(), connection, session] {
    if (connection->failed()) return;
    if (session.empty() || !self->dialer_)
      return connection->fail(connection_error("this address cannot be dialed"));
    self->dialer_->dial(
        session, [connection](const std::optional<Error>& error, std::shared_ptr<Stream> stream) {
          if (error) return connection->fail(connection_error(error->what()));
          connection->attach(std::move(stream));
        });
  });
  return handle;
}

// Never throws: TensorPipe calls it where nobody catches. A listener that cannot be is born closed.
std::shared_ptr<tensorpipe::transport::Listener> Context::listen(std::string address) {
  auto listener = std::make_shared<ListenerCore>(session_of(address));
  bool entered = false;
  {
    std::lock_guard lock(mutex_);
    if (!closed_ && !listener->session().empty())
      entered = listeners_.emplace(listener->session(), listener).second;
  }
  if (!entered) listener->close();
  return std::make_shared<Listener>(shared_from_this(), std::move(listener));
}

bool Context::deliver(const std::string& session, std::shared_ptr<Stream> stream) {
  std::shared_ptr<ListenerCore> listener;
  {
    std::lock_guard lock(mutex_);
    const auto found = listeners_.find(session);
    if (!closed_ && found != listeners_.end()) listener = found->second;
  }
  if (!listener) {
    stream->close();
    return false;
  }
  listener->deliver(new_connection(session), std::move(stream));
  return true;
}

void Context::end_session(const std::string& session) {
  std::shared_ptr<ListenerCore> listener;
  std::vector<std::shared_ptr<ConnectionCore>> connections;
  {
    std::lock_guard lock(mutex_);
    const auto found = listeners_.find(session);
    if (found != listeners_.end()) listener = found->second;
    if (listener) listeners_.erase(found);
    for (const auto& connection : connections_)
      if (connection->session() == session) connections.push_back(connection);
  }
  // They end without the lock: their callbacks are not ours, and a connection takes the lock to
  // leave the list.
  if (listener) listener->close();
  for (const auto& connection : connections)
    connection->fail(connection_error("the session has ended"));
}

size_t Context::num_connections() const {
  std::lock_guard lock(mutex_);
  return connections_.size();
}

void Context::forget(const std::shared_ptr<ConnectionCore>& connection) {
  std::lock_guard lock(mutex_);
  connections_.erase(connection);
  if (connections_.empty()) emptied_.notify_all();
}

void Context::forget_listener(const std::shared_ptr<ListenerCore>& listener) {
  std::lock_guard lock(mutex_);
  const auto found = listeners_.find(listener->session());
  if (found != listeners_.end() && found->second == listener) listeners_.erase(found);
}

void Context::close() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    ended_ = connections_.empty() && listeners_.empty();
    if (ended_) return;
  }
  run_on_loop([self = shared_from_this()] {
    std::vector<std::shared_ptr<ConnectionCore>> connections;
    std::map<std::string, std::shared_ptr<ListenerCore>> listeners;
    {
      std::lock_guard lock(self->mutex_);
      connections.assign(self->connections_.begin(), self->connections_.end());
      listeners = std::exchange(self->listeners_, {});
    }
    // They end without the lock: their callbacks are not ours, and a connection takes the lock to
    // leave the list.
    for (const auto& [session, listener] : listeners)
      listener->close();
    for (const auto& connection : connections)
      connection->fail(connection_error("the transport was closed"));

    std::lock_guard lock(self->mutex_);
    self->ended_ = true;
    self->emptied_.notify_all();
  });
}

void Context::join() {
  RETORT_CHECK(!future_detail::on_loop_thread()) << "a loop thread would wait for itself";
  close();
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [this] { return ended_ && connections_.empty(); });
}

}  // namespace retort::rpc::transport
