#include "parallel/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/log.h"
#include "base/network_interfaces.h"
#include "base/sizes.h"
#include "parallel/detail/c10d_impl.h"
#include "parallel/detail/connect_in_time.h"
#include "parallel/detail/device_backends.h"
#include "parallel/detail/device_setup.h"
#include "parallel/detail/device_watch.h"
#include "parallel/detail/mesh.h"
#include "parallel/detail/store_barrier.h"

namespace retort::parallel {
namespace {

constexpr std::string_view kEmbedding = "embedding";
// The groups by name and axes. All ranks create them in this order, which is also their order in
// World::Impl::groups.
// `of_tensors`: they carry tensors of devices; the others numbers of the host, and messages, which
// go through host memory on devices too.
struct GroupKind {
  const char* name;
  std::string_view axes;
  bool of_tensors = false;
};
constexpr std::array<GroupKind, 7> kGroups{{{"all", "tp-dp-pp"},
                                            {"tp", "tp", true},
                                            {"dp", "dp", true},
                                            {"pp", "pp"},
                                            {"mp", "tp-pp"},
                                            {"dp_pp", "dp-pp"},
                                            {"embedding", kEmbedding, true}}};

void validate(const World::Options& options) {
  options.layout.validate();
  if (options.role.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "World::Options::role is empty, expected the role's name");
  if (options.rank < 0 || options.rank >= options.layout.world_size())
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(options.rank) + " is outside of role '" + options.role +
                    "' with " + std::to_string(options.layout.world_size()) + " ranks");
  if (options.timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument,
                "World::Options::timeout must be positive: it bounds every collective");
  if (options.layout.device != Device::kCpu && !options.device_module)
    throw Error(ErrorCode::kUnavailable, "role '" + options.role +
                                             "': world.device: cuda needs the retort_cuda module, "
                                             "which this process has not loaded; use device: cpu");
}

// Waits until every rank of the role has said that it is here, and names those that have not.
void await_all_ranks(StoreClient& store, const World::Options& options, Deadline deadline) {
  constexpr size_t kMaxNamed = 16;
  const int64_t size = options.layout.world_size();
  const std::string place = "rank/";
  if (detail::meet(store, place, options.rank, size, deadline)) return;

  // The error names those that are missing, because the ranks that wait cannot say why.
  std::string missing;
  for (const int64_t rank : detail::missing_members(store, place, size, kMaxNamed))
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  throw Error(ErrorCode::kTimeout,
              "role '" + options.role + "': rank(s) " + missing + " of " + std::to_string(size) +
                  " did not arrive within " + std::to_string(options.timeout.count()) +
                  " ms; look for why they stopped, or raise launch.collective_timeout")
      .with("rank", options.rank);
}

// Makes Gloo's network device at the address where the other ranks reach this one.
std::shared_ptr<gloo::transport::Device> make_device(const World::Options& options) {
  return c10d::ProcessGroupGloo::createDeviceForHostname(
      options.address.empty() ? address_towards(options.store_host, options.store_port)
                              : options.address);
}

// Finds the group of this rank along the axes; share_mesh() gives it a network later. If none of
// the groups holds this rank, it is this rank alone.
std::shared_ptr<Group::Impl> find_group(const World::Options& options, const char* name,
                                        std::string_view axes) {
  auto impl = std::make_shared<Group::Impl>();
  impl->name = options.role + "." + name;
  impl->timeout = options.timeout;
  impl->ranks = {to_int(options.rank)};
  for (std::vector<int>& ranks :
       axes == kEmbedding ? embedding_groups(options.layout) : rank_groups(options.layout, axes)) {
    const auto position = std::ranges::find(ranks, to_int(options.rank));
    if (position == ranks.end()) continue;
    impl->position = to_int(position - ranks.begin());
    impl->ranks = std::move(ranks);
    break;
  }
  return impl;
}

// Returns the store as the devices of one group see it. Groups of one axis have one name, so the
// keys carry the group's first rank too.
c10::intrusive_ptr<c10d::Store> device_store(const Group::Impl& group, const StoreClient& store) {
  return c10::make_intrusive<c10d::PrefixStore>(
      store.impl()->prefix + "device/" + group.name + "/" + std::to_string(group.ranks.front()),
      store.impl()->store);
}

// Groups of equal ranks share one mesh, and with it one set of connections. The first of them makes
// it.
void share_mesh(Group::Impl& group, const StoreClient& store,
                const std::shared_ptr<gloo::transport::Device>& device,
                std::vector<std::shared_ptr<detail::Mesh>>& meshes) {
  auto found =
      std::ranges::find_if(meshes, [&](const auto& mesh) { return mesh->ranks() == group.ranks; });
  if (found == meshes.end())
    found = meshes.insert(meshes.end(), std::make_shared<detail::Mesh>(
                                            detail::Mesh::Options{.name = group.name,
                                                                  .ranks = group.ranks,
                                                                  .position = group.position,
                                                                  .timeout = group.timeout,
                                                                  .store = store,
                                                                  .device = device}));
  group.mesh = *found;
  group.place_in_mesh = group.mesh->add_group();
}

// What connects has the group's timeout too, and tells more when it comes first.
constexpr std::chrono::seconds kConnectMargin{2};

// Connects the members for collectives on their devices, and has them watched.
void connect_devices(Group::Impl& group, const StoreClient& store, const World::Options& options,
                     const std::shared_ptr<detail::DeviceWatch>& watch) {
  try {
    group.device_backend = detail::connect_in_time(
        options.device_module,
        {group.name, group.ranks, group.position, group.timeout, options.high_priority_streams},
        device_store(group, store), group.timeout + kConnectMargin);
  } catch (const std::exception& e) {
    throw detail::unconnected(group.name, group.ranks[to_size(group.position)], "connect devices",
                              e);
  }
  group.watched = watch->add_group(group.name, group.ranks[to_size(group.position)], group.timeout,
                                   group.device_backend);
}

// Connects the groups on their devices. When that fails the connected ones are aborted, because an
// orderly end would wait for ranks that may not come.
void connect_all(const std::vector<std::shared_ptr<Group::Impl>>& groups, const StoreClient& store,
                 const World::Options& options, const std::shared_ptr<detail::DeviceWatch>& watch) {
  try {
    for (const std::shared_ptr<Group::Impl>& group : groups)
      connect_devices(*group, store, options, watch);
  } catch (...) {
    watch->end(/*failed=*/true);
    throw;
  }
}

// What is left of the device once NCCL, and whoever else is there, has taken its part.
// Only told, so that a driver which does not answer ends no world whose groups are connected.
void log_memory(const World::Options& options, const std::vector<std::string>& connected) {
  constexpr double kGib = 1 << 30;
  std::string names;
  for (const std::string& name : connected)
    names += (names.empty() ? " " : ", ") + name;
  std::ostringstream text;
  text << "groups connected on the device:" << (names.empty() ? " none" : names) << "; ";

  try {
    const detail::DeviceMemory memory = options.device_module->backends().memory();
    text << std::fixed << std::setprecision(1) << static_cast<double>(memory.free) / kGib
         << " of its " << static_cast<double>(memory.total) / kGib << " GiB are free";
  } catch (const std::exception& e) {
    RETORT_LOG(kWarning) << text.str()
                         << "how much of its memory is free is not known: "
                         << detail::first_line(e);
    return;
  }
  RETORT_LOG(kInfo) << text.str();
}

// Tells of contexts on devices that are not this rank's: some call named no device, on a thread
// that began with another. Each takes half a gigabyte of that device.
void warn_of_contexts(const World::Options& options, int64_t own) {
  std::string others;
  try {
    for (const int64_t index : options.device_module->backends().contexts())
      if (index != own) others += (others.empty() ? "" : ", ") + std::to_string(index);
  } catch (const std::exception& e) {  // the world is at its end
    RETORT_LOG(kWarning) << "the contexts of this process are not known: " << detail::first_line(e);
  }
  if (others.empty()) return;
  RETORT_LOG(kWarning) << "rank " << options.rank << " of " << options.role
                       << " computes on device " << own << " and has a context on device " << others
                       << " too, which takes memory there; a device map that names it is a reason, "
                          "else a thread has used it";
}

// Chooses the device of this rank: the roles of a host share out its devices, and the ranks of a
// role take theirs in order.
DeviceChoice share_out_devices(const World::Options& options) {
  const World::Options::DeviceSharers sharers = options.device_sharers.value_or(
      World::Options::DeviceSharers{.rank = options.rank,
                                    .size = options.layout.world_size(),
                                    .store_prefix = options.store_prefix});
  // A rank that shares with no other needs no store to know its device.
  std::optional<StoreClient> store;
  if (sharers.size > 1)
    store.emplace(options.store_host, options.store_port, sharers.store_prefix, options.timeout,
                  options.connect_store);
  detail::DeviceTaker taker{.role = options.role,
                            .users = options.device_users,
                            .rank = sharers.rank,
                            .size = sharers.size,
                            .share = options.share_devices};
  if (taker.users.empty()) taker.users = {{.role = options.role}};
  return detail::take_device(*options.device_module, store ? &*store : nullptr, taker,
                             Deadline::after(options.timeout));
}

}  // namespace

struct World::Impl {
  Options options;
  std::optional<DeviceChoice> device;
  std::shared_ptr<detail::DeviceWatch> watch;
  std::vector<std::shared_ptr<detail::Mesh>> meshes;  // one for each set of ranks
  std::vector<Group> groups;                          // as kGroups
  int exceptions = std::uncaught_exceptions();  // that were on their way when the world was made
};

namespace {

// c10d's flight recorder is one for the process, and its threads can wait for one another for ever
// in it (LibTorch 2.11). Whoever needs it sets its size, and has one thread in collectives.
void turn_off_flight_recorder() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
}

}  // namespace

World::World(Options options) : impl_(std::make_unique<Impl>()) {
  turn_off_flight_recorder();
  validate(options);
  impl_->options = std::move(options);
  const Options& o = impl_->options;

  // Rendezvous: nobody connects before all ranks are there, so that an error names who is missing.
  std::optional<StoreClient> store;
  std::shared_ptr<gloo::transport::Device> network;
  if (o.layout.world_size() > 1) {
    const Deadline deadline = Deadline::after(o.timeout);
    store.emplace(o.store_host, o.store_port, o.store_prefix, o.timeout, o.connect_store);
    await_all_ranks(*store, o, deadline);
    network = make_device(o);
  }

  // Connecting is collective, so all ranks go through their groups in the same order.
  std::vector<std::shared_ptr<Group::Impl>> large, on_devices;  // of more than this rank
  for (const GroupKind& kind : kGroups) {
    const std::shared_ptr<Group::Impl> group = find_group(o, kind.name, kind.axes);
    impl_->groups.emplace_back(group);
    if (group->ranks.size() == 1) continue;
    share_mesh(*group, *store, network, impl_->meshes);
    large.push_back(group);
    if (kind.of_tensors || o.device_groups == Options::DeviceGroups::kAll)
      on_devices.push_back(group);
  }

  // On devices the ranks first share out those of their hosts and then connect their groups there.
  if (o.layout.device == Device::kCpu) return;
  impl_->device = share_out_devices(o);
  if (impl_->device->shared && !o.connect_sharers) on_devices.clear();
  std::vector<std::string> connected;
  for (const std::shared_ptr<Group::Impl>& group : on_devices)
    connected.push_back(group->name);
  if (!connected.empty()) {
    impl_->watch = std::make_shared<detail::DeviceWatch>(o.device_module->backends());
    // Every group asks the watch, so that a rank which waits on the host hears of the device too.
    for (const std::shared_ptr<Group::Impl>& group : large)
      group->watch = impl_->watch;
    connect_all(on_devices, *store, o, impl_->watch);
  }
  log_memory(o, connected);
}

World::~World() {
  // An orderly end waits for the other ranks, which a rank that leaves by an exception must not.
  // Nor may it ask the driver, which can wait for what hangs on the device.
  const bool failed = std::uncaught_exceptions() > impl_->exceptions;
  const bool hangs = impl_->watch && impl_->watch->failure();
  if (impl_->device && !failed && !hangs) warn_of_contexts(impl_->options, impl_->device->index);
  if (impl_->watch) impl_->watch->end(failed);
}

const World::Options& World::options() const { return impl_->options; }
int64_t World::rank() const { return impl_->options.rank; }
int64_t World::size() const { return impl_->options.layout.world_size(); }
Coordinate World::coordinate() const { return coordinate_of(impl_->options.layout, rank()); }
at::Device World::device() const {
  if (!impl_->device) return at::kCPU;
  return {impl_->options.device_module->backends().device_type(),
          static_cast<at::DeviceIndex>(impl_->device->index)};
}
int64_t World::peak_device_bytes() const {
  return impl_->device ? impl_->options.device_module->backends().peak_bytes() : 0;
}
Group& World::all() { return impl_->groups[0]; }
Group& World::tp() { return impl_->groups[1]; }
Group& World::dp() { return impl_->groups[2]; }
Group& World::pp() { return impl_->groups[3]; }
Group& World::mp() { return impl_->groups[4]; }
Group& World::dp_pp() { return impl_->groups[5]; }
Group& World::embedding() { return impl_->groups[6]; }

}  // namespace retort::parallel
