// The network of an agent in a run: one TCP port, proofs on every connection, TensorPipe for data.
#pragma once

#include <memory>
#include <string>

#include "rpc/agent.h"
#include "rpc/detail/receive_pool.h"
#include "rpc/detail/tensorpipe_plane.h"
#include "rpc/network/network.h"
#include "rpc/transport/acceptor.h"

namespace retort::rpc::detail {

class TcpNetwork final : public Network {
 public:
  // `options` outlives it. kInvalidArgument for a name or an address that cannot be.
  explicit TcpNetwork(const Agent::Options& options);

  std::shared_ptr<Loop> loop() override { return loop_; }
  DataPlane& data() override { return *data_; }
  void open_port(OnControl on_control) override;
  std::string address() const override;
  void close_port() override { acceptor_->close(); }
  std::shared_ptr<transport::PeerDial> dial(transport::PeerPort peer) override;

 private:
  transport::SocketOptions sockets() const;

  const Agent::Options& options_;
  const std::shared_ptr<Loop> loop_;
  const transport::Identity identity_;
  std::string host_;
  transport::StreamFactory streams_;
  std::unique_ptr<TensorPipePlane> data_;
  std::shared_ptr<transport::Acceptor> acceptor_;
};

}  // namespace retort::rpc::detail
