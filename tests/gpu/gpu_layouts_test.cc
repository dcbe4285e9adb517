// Trainers of two and four ranks whose collectives are NCCL's, all on one device, beside one in a
// single process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <ostream>

#include "tests/gpu/device_under_test.h"
#include "tests/gpu/sharing_ranks.h"
#include "tests/parallel/rank_process.h"
#include "tests/roles/layout_training.h"

namespace retort::gpu_testing {
namespace {

using parallel::StoreServer;
using roles::testing::device_layouts;

std::string scenario_of(size_t index) { return "case-" + std::to_string(index); }

std::string test_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = name_of(device_layouts()[info.param]);
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
}

class GpuLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(GpuLayouts, TrainLikeOneProcess) {
  RETORT_NEEDS_DEVICES(1);
  const parallel::Layout& layout = device_layouts()[GetParam()].layout;
  const StoreServer store("127.0.0.1");
  auto ranks = parallel::testing::spawn_ranks(
      store, {.scenario = scenario_of(GetParam()), .layout = layout}, layout.world_size());
  parallel::testing::expect_success(std::move(ranks), std::chrono::seconds(90));
}
INSTANTIATE_TEST_SUITE_P(Cases, GpuLayouts, ::testing::Range<size_t>(0, device_layouts().size()),
                         test_name);

}  // namespace
}  // namespace retort::gpu_testing

int main(int argc, char** argv) {
  using namespace retort::gpu_testing;
  find_device();
  std::map<std::string, retort::parallel::testing::Scenario> scenarios;
  for (size_t i = 0; i < device_layouts().size(); ++i)
    scenarios[scenario_of(i)] = [i] {
      retort::roles::testing::SingleRuns singles;
      retort::roles::testing::compare_with_one_process(device_layouts()[i], sharing_world_options(),
                                                       singles, retort::parallel::Device::kCuda);
    };
  return retort::parallel::testing::ranks_or_tests(argc, argv, scenarios);
}
