// An attempt to reach a simulated host's port.
#pragma once

#include <memory>

#include "rpc/transport/dial.h"
#include "tests/rpc/simulation/network.h"

namespace retort::rpc::simulation {

class PortDial final : public transport::PeerDial, public std::enable_shared_from_this<PortDial> {
 public:
  PortDial(std::shared_ptr<Host> host, transport::PeerPort peer)
      : host_(std::move(host)), peer_(std::move(peer)) {}

  void start(Deadline deadline, transport::Handshake::Done done) override;
  void abort(const Error& error) override { fail(error); }

 private:
  void knock();
  void let_in(Host& there);
  void finish_later(transport::HandshakeResult result);
  void fail(const Error& error);

  const std::shared_ptr<Host> host_;
  const transport::PeerPort peer_;
  transport::Handshake::Done done_;
};

}  // namespace retort::rpc::simulation
