#include "parallel/detail/device_setup.h"

#include <unistd.h>

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/sizes.h"
#include "base/this_host.h"
#include "kernels/device_kernels.h"
#include "parallel/detail/device_backends.h"

namespace retort::parallel::detail {
namespace {

// NCCL's settings in the environment: "NCCL_DEBUG=INFO TORCH_NCCL_..."; empty if there are none.
std::string nccl_settings() {
  std::string found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view setting(*entry);
    if (setting.starts_with("NCCL_") || setting.starts_with("TORCH_NCCL_"))
      found.append(found.empty() ? "" : " ").append(setting);
  }
  return found;
}

// "<devices of the host> <whether named> <how many for the role> <each> <host>".
std::string to_text(const RankHost& host) {
  std::ostringstream out;
  out << host.num_devices << ' ' << host.is_named << ' ' << host.devices.size();
  for (const int64_t index : host.devices)
    out << ' ' << index;
  out << ' ' << host.host;
  return out.str();
}

RankHost from_text(const std::string& text) {
  std::istringstream in(text);
  RankHost host;
  size_t count = 0;
  in >> host.num_devices >> host.is_named >> count;
  for (int64_t index = 0; in && host.devices.size() < count;) {
    in >> index;
    host.devices.push_back(index);
  }
  std::getline(in >> std::ws, host.host);
  RETORT_CHECK(!in.fail()) << "'" << text << "' was written by to_text()";
  return host;
}

// Warns of other roles that take memory of the same device, which people may not have meant.
void warn_of_others(const DeviceTaker& taker, int64_t num_devices, int64_t index,
                    const std::string& device) {
  std::string others;
  for (const std::string& role : other_roles_on(taker.users, taker.role, num_devices, index))
    others += (others.empty() ? "" : ", ") + role;
  if (others.empty()) return;
  RETORT_LOG(kWarning) << taker.role << " shares " << device << " with " << others
                       << ": this host shows " << num_devices
                       << " devices to the ranks of its roles, and roles.<name>.devices may name "
                          "one for several";
}

}  // namespace

DeviceChoice take_device(DeviceModule& module, StoreClient* store, const DeviceTaker& taker,
                         Deadline deadline) {
  // Every rank writes where it is and reads the same list.
  const int64_t num_devices = module.num_devices();
  std::vector<RankHost> ranks{rank_host(this_host(), num_devices, taker.users, taker.role)};
  if (store != nullptr) {
    std::vector<std::string> keys;
    for (int64_t r = 0; r < taker.size; ++r)
      keys.push_back("device/" + std::to_string(r));
    store->set(keys[to_size(taker.rank)], to_text(ranks.front()));
    ranks.clear();
    for (const std::string& text : store->get_all(keys, deadline))
      ranks.push_back(from_text(text));
  }

  // The environment changes what NCCL does, so the log keeps these settings.
  if (const std::string settings = nccl_settings(); !settings.empty()) {
    RETORT_LOG(kInfo) << "NCCL's settings in the environment: " << settings;
  }

  // All ranks choose from the same list by the same rule, so they agree without another message.
  const DeviceChoice choice = choose_device(ranks, store != nullptr ? taker.rank : 0, taker.share);
  const at::Device device(module.backends().device_type(),
                          static_cast<at::DeviceIndex>(choice.index));
  module.backends().use_device(choice.index);
  if (kernels::DeviceKernels* kernels = kernels::device_kernels(device)) kernels->prepare(device);
  RETORT_LOG(kInfo) << "rank " << taker.rank << " computes on " << device.str() << " ("
                    << module.versions() << ")"
                    << (choice.shared
                            ? "; ranks share devices, so their collectives go through host memory"
                            : "");
  warn_of_others(taker, num_devices, choice.index, device.str());
  return choice;
}

}  // namespace retort::parallel::detail
