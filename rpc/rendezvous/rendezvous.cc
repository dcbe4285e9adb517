#include "rpc/rendezvous/rendezvous.h"

#include <algorithm>
#include <utility>

#include "rpc/detail/bind_address.h"
#include "rpc/rendezvous/store_client.h"
#include "rpc/rendezvous/store_identity.h"
#include "rpc/rendezvous/store_server.h"

namespace retort::rpc {
namespace {

c10::intrusive_ptr<c10d::Store> connect(const RendezvousAccess& access, const std::string& host,
                                        uint16_t port, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "the timeout of a store must be positive")
        .with("ms", timeout.count());
  const transport::Identity identity = rendezvous::identity_of(access, access.name);

  const Deadline deadline =
      Deadline::after(std::min<std::chrono::milliseconds>(timeout, rendezvous::kMaxStoreTimeout));
  auto session = std::make_shared<rendezvous::StoreSession>(
      identity, detail::streams_for(identity, access.encryption, host), host, port, deadline);
  return c10::make_intrusive<rendezvous::StoreClient>(std::move(session), timeout);
}

}  // namespace

RendezvousServer::RendezvousServer(const RendezvousAccess& access, const std::string& bind,
                                   const std::string& ports, SupervisionTimes times)
    : host_(detail::resolve_bind(bind)),
      supervision_(std::make_shared<supervision::SupervisionServer>(times)) {
  const transport::Identity identity = rendezvous::identity_of(access, rendezvous::kStoreName);
  rendezvous::StoreServerOptions options;
  options.acceptor.hosts = {host_};
  options.acceptor.ports = detail::parse_ports(ports);
  options.supervision = supervision_;
  server_ = std::make_unique<rendezvous::StoreServer>(
      identity, detail::streams_for(identity, access.encryption, host_), std::move(options));
}

RendezvousServer::~RendezvousServer() = default;

uint16_t RendezvousServer::port() const { return server_->port(); }

SupervisionPort& RendezvousServer::supervision() { return *supervision_; }

ConnectStore store_connector(RendezvousAccess access) {
  return [access = std::move(access)](const std::string& host, uint16_t port,
                                      std::chrono::milliseconds timeout) {
    return connect(access, host, port, timeout);
  };
}

}  // namespace retort::rpc
