#include "rpc/detail/tcp_network.h"

#include <utility>

#include "base/error.h"
#include "rpc/detail/bind_address.h"
#include "rpc/detail/wire_schema.h"
#include "rpc/listen_address.h"

namespace retort::rpc::detail {
namespace {

constexpr uint64_t kMaxIdleReceiveBytes = uint64_t{1} << 30;

}  // namespace

TcpNetwork::TcpNetwork(const Agent::Options& options)
    : options_(options),
      loop_(std::make_shared<Loop>(options.rpc.spin)),
      identity_{.name = options.name,
                .run = options.run,
                .schema = wire_schema(),
                .credentials = {{"run", options.secret}}} {
  identity_.validate();
  options.rpc.validate();
  host_ = resolve_bind(options.rpc.bind);
  streams_ = streams_for(identity_, options.rpc.encryption, host_,
                         std::make_shared<transport::TlsThreads>());
  data_ = std::make_unique<TensorPipePlane>(loop_, identity_, streams_, options.rpc,
                                            std::make_shared<ReceivePool>(kMaxIdleReceiveBytes),
                                            options.devices);
}

void TcpNetwork::open_port(OnControl on_control) {
  transport::AcceptorHandlers handlers;
  handlers.find_session = [this](const std::string& session) { return data_->find(session); };
  handlers.on_data = [this](std::shared_ptr<transport::Stream> stream,
                            const transport::Proven& who) {
    data_->deliver(who.session, std::move(stream));
  };
  handlers.on_control = std::move(on_control);
  const transport::AcceptorOptions options{
      .hosts = {host_}, .ports = parse_ports(options_.rpc.port), .sockets = sockets()};
  try {
    acceptor_ = std::make_shared<transport::Acceptor>(loop_, options, identity_, streams_,
                                                      std::move(handlers));
  } catch (const Error& error) {
    // With port 0 the system finds a free one; a port that is taken is for the user to change.
    if (!is_port_taken(error) || options.ports.first == 0) throw;
    throw Error(error.code(), "rpc.port: no port of " + options_.rpc.port + " is free at " + host_ +
                                  " (" + error.message() +
                                  "); write a wider range, one port for each process of a host, "
                                  "or 0, with which the system chooses");
  }
  acceptor_->start();
}

std::string TcpNetwork::address() const {
  return advertised(options_.rpc.advertise, acceptor_->addresses().front());
}

std::shared_ptr<transport::PeerDial> TcpNetwork::dial(transport::PeerPort peer) {
  return std::make_shared<transport::Dial>(loop_->io(), identity_, streams_, sockets(),
                                           std::move(peer));
}

transport::SocketOptions TcpNetwork::sockets() const {
  return transport::outlasting(options_.rpc.peer_timeout);
}

}  // namespace retort::rpc::detail
