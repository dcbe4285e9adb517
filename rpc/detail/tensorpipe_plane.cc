#include "rpc/detail/tensorpipe_plane.h"

#include <tensorpipe/tensorpipe.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "rpc/detail/device_channels.h"
#include "rpc/loop/sigpipe_block.h"

namespace retort::rpc::detail {
namespace {

constexpr const char* kScheme = "retort";
constexpr int64_t kFirstPriority = 100;

std::string url_of(const std::string& session) {
  return std::string(kScheme) + "://" + transport::session_address(session);
}

void check_devices(const RpcOptions& options, const DeviceTransfer& devices) {
  for (const auto& [role, map] : options.device_maps)
    for (const auto& [here, there] : map)
      if (std::stoll(here) >= devices.num_devices())
        throw Error(ErrorCode::kInvalidArgument,
                    "the device map between this process and role '" + role + "' names device " +
                        here + " here, but only " + std::to_string(devices.num_devices()) +
                        " can be seen (indices count from 0, after CUDA_VISIBLE_DEVICES)");
}

class Listener final : public PipeListener {
 public:
  explicit Listener(std::shared_ptr<tensorpipe::Listener> listener)
      : listener_(std::move(listener)) {}
  void close() override { listener_->close(); }

 private:
  const std::shared_ptr<tensorpipe::Listener> listener_;
};

std::shared_ptr<tensorpipe::channel::Context> make_channel(const std::string& name) {
  return name == "cma" ? tensorpipe::channel::cma::create() : tensorpipe::channel::basic::create();
}

}  // namespace

TensorPipePlane::TensorPipePlane(std::shared_ptr<Loop> loop, const transport::Identity& identity,
                                 const transport::StreamFactory& streams, const RpcOptions& options,
                                 std::shared_ptr<ReceivePool> pool,
                                 std::shared_ptr<DeviceTransfer> devices)
    : name_(identity.name),
      loop_(loop),
      pool_(std::move(pool)),
      devices_(std::move(devices)),
      sessions_(std::make_shared<transport::Sessions>(loop, identity, streams)),
      connections_(std::make_shared<transport::Context>(
          std::move(loop),
          transport::ContextOptions{.probe_interval = options.heartbeats(),
                                    .silence_timeout = options.peer_timeout,
                                    .on_channel = channel_listener()},
          sessions_)) {
  if (devices_) {
    check_devices(options, *devices_);
    (void)devices_->device_ids();  // asked now, because the loop must not wait for the driver
  }
  SigpipeBlock no_sigpipe;  // for the threads that the channels start
  tensorpipe_ =
      std::make_unique<tensorpipe::Context>(tensorpipe::ContextOptions().name(identity.name));
  tensorpipe_->registerTransport(kFirstPriority, kScheme, connections_);
  add_channels(kFirstPriority - 1, options);
}

// A channel that the machine cannot do is left to the next one; basic always works.
void TensorPipePlane::add_channels(int64_t priority, const RpcOptions& options) {
  for (const auto& name : options.channels) {
    auto context = make_channel(name);
    if (context->isViable())
      tensorpipe_->registerChannel(priority--, name, std::move(context));
    else
      RETORT_LOG(kInfo) << "TensorPipe channel '" << name
                        << "' does not work on this machine; the next one is used";
  }
  if (!devices_) return;
  for (DeviceChannel& channel : make_device_channels(*devices_)) {
    if (!channel.context) {
      RETORT_LOG(kWarning) << "TensorPipe channel '" << channel.name << "' (" << channel.how
                           << ") does not work on this machine, the next one is used: "
                           << channel.problem;
      continue;
    }
    device_channels_[channel.name] = channel.how;
    tensorpipe_->registerChannel(priority--, channel.name, std::move(channel.context));
  }
}

// The two processes choose the channels by themselves, so the log keeps which these are: through
// host memory they are several times slower, and nothing else shows it.
TensorPipePlane::OnChannel TensorPipePlane::channel_listener() {
  if (!devices_) return {};
  return [this](const std::string& session, const std::string& channel) {
    loop_->post([this, session, channel] { tell_channel(session, channel); });
  };
}

void TensorPipePlane::tell_channel(const std::string& session, const std::string& channel) {
  const std::optional<transport::SessionKey> key = sessions_->find(session);
  if (!key || !told_.emplace(key->peer, channel).second) return;
  const auto how = device_channels_.find(channel);
  RETORT_LOG(kInfo) << name_ << " and " << key->peer << ": tensors "
                    << (how == device_channels_.end() ? "of the host travel by channel "
                                                      : "of devices travel by channel ")
                    << channel << (how == device_channels_.end() ? "" : ", " + how->second);
}

void TensorPipePlane::open(const transport::Proven& control,
                           const std::optional<PeerAddress>& dialed) {
  sessions_->open(control, dialed ? dialed->host : "", dialed ? dialed->port : "");
}

void TensorPipePlane::end(const std::string& session) {
  sessions_->end(session);
  connections_->end_session(session);
}

std::shared_ptr<DataPipe> TensorPipePlane::wrap(std::shared_ptr<tensorpipe::Pipe> pipe) const {
  return std::make_shared<DataPipe>(*loop_, pool_, devices_, std::move(pipe));
}

std::shared_ptr<PipeListener> TensorPipePlane::listen(const std::string& session, size_t num_pipes,
                                                      OnPipe on_pipe) {
  auto listener = tensorpipe_->listen({url_of(session)});
  // TensorPipe gives one pipe for each accept().
  for (size_t pipe = 0; pipe < num_pipes; ++pipe)
    listener->accept([this, loop = loop_, on_pipe](
                         const tensorpipe::Error& error,
                         std::shared_ptr<tensorpipe::Pipe> accepted) noexcept {
      loop->post([this, on_pipe, error, accepted = std::move(accepted)] {
        if (!error) return on_pipe(std::nullopt, wrap(accepted));
        on_pipe(Error(ErrorCode::kPeerLost, "accepting a data connection failed: " + error.what()),
                nullptr);
      });
    });
  return std::make_shared<Listener>(std::move(listener));
}

std::shared_ptr<MessagePipe> TensorPipePlane::connect(const std::string& session,
                                                      const std::string& peer) {
  return wrap(tensorpipe_->connect(url_of(session), tensorpipe::PipeOptions().remoteName(peer)));
}

std::optional<transport::SessionKey> TensorPipePlane::find(const std::string& session) const {
  return sessions_->find(session);
}

void TensorPipePlane::deliver(const std::string& session,
                              std::shared_ptr<transport::Stream> stream) {
  connections_->deliver(session, std::move(stream));
}

void TensorPipePlane::close() { sessions_->close(); }

void TensorPipePlane::join() {
  SigpipeBlock no_sigpipe;
  tensorpipe_->close();
  tensorpipe_->join();
}

}  // namespace retort::rpc::detail
