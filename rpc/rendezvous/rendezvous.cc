#include "rpc/rendezvous/rendezvous.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "rpc/detail/bind_address.h"
#include "rpc/launcher_port/store_identity.h"
#include "rpc/rendezvous/store_client.h"
#include "rpc/rendezvous/store_server.h"

namespace retort::rpc {
namespace {

// Holds the connections of one process: one to each server, which all its stores share.
class SharedSessions {
 public:
  explicit SharedSessions(RendezvousAccess access) : access_(std::move(access)) {}

  std::shared_ptr<rendezvous::StoreSession> get(const std::string& host, uint16_t port,
                                                Deadline deadline) {
    const transport::Identity identity = launcher_port::identity_of(access_, access_.name);
    // Whoever comes while another thread connects waits for that, no longer than its own deadline.
    std::unique_lock lock(mutex_, deadline.time());
    if (!lock)
      throw Error(ErrorCode::kTimeout, "another thread still connects to the run's store")
          .with("store", host + ":" + std::to_string(port));

    std::shared_ptr<rendezvous::StoreSession>& session = sessions_[{host, port}];
    if (!session || session->ended())
      session = std::make_shared<rendezvous::StoreSession>(
          identity, detail::streams_for(identity, access_.encryption, host), host, port, deadline,
          rendezvous::StoreLimits{}, transport::outlasting(access_.peer_timeout));
    return session;
  }

 private:
  const RendezvousAccess access_;
  std::timed_mutex mutex_;
  std::map<std::pair<std::string, uint16_t>, std::shared_ptr<rendezvous::StoreSession>> sessions_;
};

}  // namespace

RendezvousServer::RendezvousServer(const RendezvousAccess& access, const std::string& bind,
                                   const std::string& ports, SupervisionTimes times)
    : host_(detail::resolve_bind(bind)),
      supervision_(std::make_shared<supervision::SupervisionServer>(times)) {
  const transport::Identity identity =
      launcher_port::identity_of(access, launcher_port::kStoreName);
  rendezvous::StoreServerOptions options;
  options.acceptor.hosts = {host_};
  options.acceptor.ports = detail::parse_ports(ports);
  options.acceptor.sockets = transport::outlasting(times.limit);
  options.supervision = supervision_;
  server_ = std::make_unique<rendezvous::StoreServer>(
      identity, detail::streams_for(identity, access.encryption, host_), std::move(options));
}

RendezvousServer::~RendezvousServer() = default;

uint16_t RendezvousServer::port() const { return server_->port(); }

SupervisionPort& RendezvousServer::supervision() { return *supervision_; }

ConnectStore store_connector(RendezvousAccess access, std::function<StorePlace()> where) {
  auto sessions = std::make_shared<SharedSessions>(std::move(access));
  return [sessions, where = std::move(where)](
             const std::string& host, uint16_t port,
             std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Store> {
    if (timeout.count() <= 0)
      throw Error(ErrorCode::kInvalidArgument, "the timeout of a store must be positive")
          .with("ms", timeout.count());
    const Deadline deadline =
        Deadline::after(std::min<std::chrono::milliseconds>(timeout, rendezvous::kMaxStoreTimeout));
    const StorePlace place = where ? where() : StorePlace{.host = host, .port = port};
    return c10::make_intrusive<rendezvous::StoreClient>(
        sessions->get(place.host, place.port, deadline), timeout);
  };
}

}  // namespace retort::rpc
