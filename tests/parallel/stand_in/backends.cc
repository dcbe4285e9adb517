#include "tests/parallel/stand_in/backends.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/sizes.h"
#include "parallel/detail/device_backends.h"
#include "tests/losses/stand_in_device.h"
#include "tests/parallel/stand_in/group.h"

namespace retort::test {
namespace {

// No other group has it, on whatever host and at whatever time.
std::string new_key(const std::string& name) {
  static std::atomic<int64_t> count{0};
  return name + "-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" +
         std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
}

// The first member chooses the key, under which all of them meet in the store from then on.
std::string agree_on_key(const parallel::detail::DeviceGroupSpec& group, c10d::Store& store) {
  constexpr const char* kKey = "stand_in_key";
  std::string key = new_key(group.name);
  if (group.position == 0) {
    store.set(kKey, std::vector<uint8_t>(key.begin(), key.end()));
    return key;
  }
  store.wait({kKey}, group.timeout);
  const std::vector<uint8_t> chosen = store.get(kKey);
  return {chosen.begin(), chosen.end()};
}

class StandInBackends final : public parallel::detail::DeviceBackends {
 public:
  at::DeviceType device_type() const override { return stand_in_device().type(); }
  std::string versions() const override { return "a stand-in of the tests"; }
  int64_t num_devices() const override { return stand_in_devices(); }
  void use_device(int64_t index) override { use_stand_in_device(index); }
  void synchronize() override {}
  int64_t peak_bytes() const override { return stand_in_peak_bytes(); }
  // The host's memory is not the device's to count: a card of 64 GiB of which 16 are taken.
  parallel::detail::DeviceMemory memory() const override {
    return {.free = int64_t{48} << 30, .total = int64_t{64} << 30};
  }
  std::vector<int64_t> contexts() const override { return {stand_in_device().index()}; }

  c10::intrusive_ptr<c10d::Backend> connect(const parallel::detail::DeviceGroupSpec& group,
                                            const c10::intrusive_ptr<c10d::Store>& store) override {
    const std::string key = agree_on_key(group, *store);
    const StandInMember member{
        .name = group.name, .ranks = group.ranks, .position = group.position};
    // Boards lie side by side in the run's store, so that one finds those of other groups.
    const auto run_store =
        c10::static_intrusive_pointer_cast<c10d::PrefixStore>(store)->getUnderlyingNonPrefixStore();
    ledger_->enter(key, member);
    auto backend = c10::make_intrusive<StandInGroup>(
        member, key, group.timeout,
        Board(run_store, key, group.position, to_int(group.ranks.size())), ledger_);
    backend->setBoundDeviceId(stand_in_device());
    return backend;
  }

  void use_device_in_thread() override {}
  void abort(const std::vector<c10::intrusive_ptr<c10d::Backend>>& groups) override {
    for (const auto& group : groups)
      group->abort();
  }

  const Ledger& ledger() const { return *ledger_; }

 private:
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
};

const Ledger& ledger_of(const parallel::World::Options& options) {
  return static_cast<const StandInBackends&>(options.device_module->backends()).ledger();
}

}  // namespace

std::unique_ptr<parallel::detail::DeviceBackends> stand_in_backends() {
  return std::make_unique<StandInBackends>();
}

parallel::World::Options on_stand_in(parallel::World::Options options) {
  options.layout.device = parallel::Device::kCuda;
  options.device_module = std::make_shared<parallel::DeviceModule>(stand_in_backends());
  return options;
}

std::optional<std::string> stand_in_failure(const parallel::World::Options& options) {
  return ledger_of(options).failure();
}

std::set<std::string> stand_in_groups(const parallel::World::Options& options) {
  std::set<std::string> names;
  for (const auto& [key, group] : ledger_of(options).groups())
    names.insert(group.name);
  return names;
}

int64_t stand_in_collectives(const parallel::World::Options& options) {
  return ledger_of(options).num_started();
}

}  // namespace retort::test
