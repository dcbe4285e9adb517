#include "parallel/detail/device_setup.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/sizes.h"
#include "base/this_host.h"
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

std::string to_text(const RankHost& host) {
  return std::to_string(host.num_devices) + " " + host.host;
}

RankHost from_text(const std::string& text) {
  const size_t space = text.find(' ');
  RETORT_CHECK(space != std::string::npos) << "'" << text << "' was written by to_text()";
  return {text.substr(space + 1), std::stoll(text.substr(0, space))};
}

}  // namespace

DeviceChoice take_device(DeviceModule& module, StoreClient* store, int64_t rank, int64_t size,
                         bool share, Deadline deadline) {
  // Every rank writes where it is and reads the same list.
  std::vector<RankHost> ranks{{this_host(), module.num_devices()}};
  if (store != nullptr) {
    std::vector<std::string> keys;
    for (int64_t r = 0; r < size; ++r)
      keys.push_back("device/" + std::to_string(r));
    store->set(keys[to_size(rank)], to_text(ranks.front()));
    ranks.clear();
    for (const std::string& text : store->get_all(keys, deadline))
      ranks.push_back(from_text(text));
  }

  if (const std::string settings = nccl_settings(); !settings.empty()) {
    RETORT_LOG(kInfo) << "NCCL's settings in the environment: " << settings;
  }

  const DeviceChoice choice = choose_device(ranks, store != nullptr ? rank : 0, share);
  const at::Device device(module.backends().device_type(),
                          static_cast<at::DeviceIndex>(choice.index));
  module.backends().use_device(choice.index);
  RETORT_LOG(kInfo) << "rank " << rank << " computes on " << device.str() << " ("
                    << module.versions() << ")"
                    << (choice.shared
                            ? "; ranks share devices, so their collectives go through host memory"
                            : "");
  return choice;
}

}  // namespace retort::parallel::detail
