#include "tests/gpu/sharing_ranks.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "tests/gpu/device_under_test.h"
#include "tests/parallel/rank_process.h"

namespace retort::gpu_testing {

parallel::World::Options sharing_world_options() {
  parallel::World::Options options = parallel::testing::child_world_options();
  const std::string host = "rank-" + std::to_string(options.rank);
  for (const auto& [name, value] :
       {std::pair{"NCCL_HOSTID", host.c_str()}, std::pair{"NCCL_NET", "Socket"},
        std::pair{"NCCL_SOCKET_IFNAME", "lo"}, std::pair{"NCCL_IB_DISABLE", "1"},
        std::pair{"NCCL_MNNVL_ENABLE", "0"}, std::pair{"NCCL_NVLS_ENABLE", "0"}})
    ::setenv(name, value, 0);
  options.layout.device = parallel::Device::kCuda;
  options.device_module = parallel::DeviceModule::load(module_path());
  options.share_devices = true;
  options.connect_sharers = true;
  return options;
}

}  // namespace retort::gpu_testing
