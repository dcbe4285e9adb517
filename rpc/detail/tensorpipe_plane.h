// The data plane of a run: TensorPipe over the project's own transport (rpc/transport), and the
// table of sessions that its connections belong to. The constructor may run on any thread.
#pragma once

#include <tensorpipe/core/context.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "rpc/detail/data_pipe.h"
#include "rpc/detail/device_transfer.h"
#include "rpc/detail/receive_pool.h"
#include "rpc/loop/loop.h"
#include "rpc/network/data_plane.h"
#include "rpc/options.h"
#include "rpc/transport/detail/context.h"
#include "rpc/transport/sessions.h"

namespace retort::rpc::detail {

class TensorPipePlane final : public DataPlane {
 public:
  // `devices` may be null.
  TensorPipePlane(std::shared_ptr<Loop> loop, const transport::Identity& identity,
                  const transport::StreamFactory& streams, const RpcOptions& options,
                  std::shared_ptr<ReceivePool> pool, std::shared_ptr<DeviceTransfer> devices);

  void open(const transport::Proven& control, const std::optional<PeerAddress>& dialed) override;
  void end(const std::string& session) override;
  std::shared_ptr<PipeListener> listen(const std::string& session, size_t num_pipes,
                                       OnPipe on_pipe) override;
  std::shared_ptr<MessagePipe> connect(const std::string& session,
                                       const std::string& peer) override;
  void close() override;
  void join() override;

  // The acceptor calls these.
  std::optional<transport::SessionKey> find(const std::string& session) const;
  void deliver(const std::string& session, std::shared_ptr<transport::Stream> stream);

 private:
  void add_channels(int64_t priority, const RpcOptions& options);
  using OnChannel = std::function<void(const std::string& session, const std::string& channel)>;
  OnChannel channel_listener();
  void tell_channel(const std::string& session, const std::string& channel);
  std::shared_ptr<DataPipe> wrap(std::shared_ptr<tensorpipe::Pipe> pipe) const;

  const std::string name_;
  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<ReceivePool> pool_;
  const std::shared_ptr<DeviceTransfer> devices_;
  const std::shared_ptr<transport::Sessions> sessions_;
  const std::shared_ptr<transport::Context> connections_;
  std::unique_ptr<tensorpipe::Context> tensorpipe_;
  std::map<std::string, std::string> device_channels_;  // name -> how tensors travel by it
  std::set<std::pair<std::string, std::string>> told_;  // peers, channels; the loop thread
};

}  // namespace retort::rpc::detail
