#include "rpc/detail/data_plane.h"

#include <tensorpipe/tensorpipe.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "rpc/detail/sigpipe_block.h"

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

std::shared_ptr<tensorpipe::channel::Context> make_channel(const std::string& name) {
  return name == "cma" ? tensorpipe::channel::cma::create() : tensorpipe::channel::basic::create();
}

}  // namespace

DataPlane::DataPlane(std::shared_ptr<Loop> loop, const transport::Identity& identity,
                     const transport::StreamFactory& streams, const RpcOptions& options,
                     DeviceTransfer* devices)
    : sessions_(std::make_shared<transport::Sessions>(loop, identity, streams)),
      connections_(std::make_shared<transport::Context>(
          std::move(loop),
          transport::ContextOptions{.probe_interval = options.heartbeat_interval,
                                    .silence_timeout = options.peer_timeout},
          sessions_)) {
  if (devices) check_devices(options, *devices);
  SigpipeBlock no_sigpipe;  // for the threads that the channels start
  tensorpipe_ =
      std::make_unique<tensorpipe::Context>(tensorpipe::ContextOptions().name(identity.name));
  tensorpipe_->registerTransport(kFirstPriority, kScheme, connections_);
  add_channels(kFirstPriority - 1, options, devices);
}

// A channel that the machine cannot do is left to the next one; basic always works.
void DataPlane::add_channels(int64_t priority, const RpcOptions& options, DeviceTransfer* devices) {
  for (const auto& name : options.channels) {
    auto context = make_channel(name);
    if (context->isViable())
      tensorpipe_->registerChannel(priority--, name, std::move(context));
    else
      RETORT_LOG(kInfo) << "TensorPipe channel '" << name
                        << "' does not work on this machine; the next one is used";
  }
  if (!devices) return;
  for (auto& [name, context] : devices->channels())
    tensorpipe_->registerChannel(priority--, name, std::move(context));
}

void DataPlane::open(const transport::Proven& control, const std::optional<PeerAddress>& dialed) {
  sessions_->open(control, dialed ? dialed->host : "", dialed ? dialed->port : "");
}

void DataPlane::end(const std::string& session) {
  sessions_->end(session);
  connections_->end_session(session);
}

std::shared_ptr<tensorpipe::Listener> DataPlane::listen(const std::string& session) {
  return tensorpipe_->listen({url_of(session)});
}

std::shared_ptr<tensorpipe::Pipe> DataPlane::connect(const std::string& session,
                                                     const std::string& peer) {
  return tensorpipe_->connect(url_of(session), tensorpipe::PipeOptions().remoteName(peer));
}

std::optional<transport::SessionKey> DataPlane::find(const std::string& session) const {
  return sessions_->find(session);
}

void DataPlane::deliver(const std::string& session, std::shared_ptr<transport::Stream> stream) {
  connections_->deliver(session, std::move(stream));
}

void DataPlane::close() { sessions_->close(); }

void DataPlane::join() {
  SigpipeBlock no_sigpipe;
  tensorpipe_->close();
  tensorpipe_->join();
}

}  // namespace retort::rpc::detail
