// Worlds whose tensors are on devices: NCCL's collectives against what they should give, ranks that
// share a device, a hung collective.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "parallel/detail/device_backends.h"
#include "parallel/world.h"
#include "tests/gpu/device_under_test.h"
#include "tests/gpu/sharing_ranks.h"
#include "tests/parallel/rank_process.h"
#include "tests/support/process.h"

namespace retort::parallel::testing {
namespace {

using namespace std::chrono_literals;

World::Options device_options() {
  World::Options options = child_world_options();
  options.layout.device = Device::kCuda;
  options.device_module = DeviceModule::load(gpu_testing::module_path());
  options.device_groups = World::Options::DeviceGroups::kAll;
  return options;
}

World::Options sharing_options() {
  World::Options options = gpu_testing::sharing_world_options();
  options.device_groups = World::Options::DeviceGroups::kAll;
  return options;
}

void require_equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  require(got.is_cuda(), what + " is on a device");
  require(at::equal(got.cpu(), expected), what);
}

// Whole numbers: the sums are exact in any order.
at::Tensor values(int rank, int64_t count, at::ScalarType dtype) {
  return (at::arange(count) % 7 + rank).to(dtype);
}

void check_group(Group& group, const at::Device& device) {
  const int n = group.size();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const int64_t k = 1000;
    at::Tensor sum = at::zeros({k}, dtype), whole = at::zeros({n * k}, dtype);
    for (int r = 0; r < n; ++r) {
      sum += values(r, k, dtype);
      whole.narrow(0, r * k, k).copy_(values(r, k, dtype));
    }

    // Sums, and gathers into a new tensor and into a given one.
    const at::Tensor mine = values(group.rank(), k, dtype).to(device);
    at::Tensor t = mine.clone();
    group.all_reduce(t);
    require_equal(t, sum, group.name() + " all_reduce");
    require_equal(group.all_gather(mine).flatten(), whole, "all_gather");
    at::Tensor gathered = at::empty({n * k}, mine.options());
    Work work = group.all_gather_into_async(gathered, mine);
    work.wait();
    require_equal(gathered, whole, "all_gather_into");

    // From the last rank, so that a root that is mistaken for the first shows.
    t = values(group.rank(), k, dtype).to(device);
    group.broadcast(t, n - 1);
    require_equal(t, values(n - 1, k, dtype), "broadcast");

    // Gradients alone are scattered, and these are float32.
    if (dtype != at::kFloat) continue;
    at::Tensor part = at::empty({k}, mine.options());
    group.reduce_scatter(part, whole.to(device));
    require_equal(part, values(group.rank(), k, dtype) * n, "reduce_scatter");
  }

  // Messages round a circle of the ranks, and what goes through host memory.
  at::Tensor t = values(group.rank(), 10, at::kFloat).to(device);
  const int next = (group.rank() + 1) % n, previous = (group.rank() + n - 1) % n;
  Work sent = group.send_async(t, next, 5);
  at::Tensor received = at::empty_like(t);
  group.recv(received, previous, 5);
  sent.wait();
  require_equal(received, values(previous, 10, at::kFloat), "send and recv");
  require(group.all_reduce(int64_t{1}) == n, "host values");
  group.barrier();
}

void nccl_scenario() {
  const World::Options options = device_options();
  World world(options);
  require(world.device() == at::Device(at::kCUDA, static_cast<at::DeviceIndex>(world.rank())),
          "a device for each rank");
  for (Group* group : {&world.all(), &world.dp(), &world.tp()})
    if (group->size() > 1) check_group(*group, world.device());
  require(options.device_module->backends().contexts() == std::vector<int64_t>{world.rank()},
          "it has a context on its own device alone");
}

// Every group that has more than one rank, on one device.
void sharing_scenario() {
  World world(sharing_options());
  require(world.device() == at::Device(at::kCUDA, 0), "all on the first device");
  for (Group* group : {&world.all(), &world.dp(), &world.tp(), &world.pp(), &world.mp()})
    if (group->size() > 1) check_group(*group, world.device());
}

void shared_scenario() {
  World::Options options = device_options();
  options.share_devices = true;
  World world(options);
  require(world.device() == at::Device(at::kCUDA, 0), "both on the first device");
  check_group(world.all(), world.device());
}

void too_many_scenario() {
  const Error error = error_of([] { World world(device_options()); });
  require(error.code() == ErrorCode::kUnavailable, error.what());
  require(error.message().find("2 ranks on a host with 1 devices") != std::string::npos,
          error.what());
}

// What a rank does, for the log, with the time since its first collective.
class Progress {
 public:
  explicit Progress(const World& world) : rank_(world.rank()) {}
  void say(const std::string& what) const {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
    std::fprintf(stderr, "rank %d, %.1f s: %s\n", static_cast<int>(rank_), time.count(),
                 what.c_str());
  }

 private:
  int64_t rank_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Rank 1 leaves out the collectives of the others and stays until they have ended, so that what
// ends them is not that they lose it.
void leave_out(const Progress& progress) {
  progress.say("leaves out the collectives and waits for the others to end");
  (void)test::hear();
  progress.say("ends");
}

// Calls collectives of this group until one throws.
Error error_of_later_calls(Group& group, at::Tensor& tensor) {
  return error_of([&] {
    for (int i = 0; i < 600; ++i) {
      group.all_reduce(tensor);
      std::this_thread::sleep_for(100ms);
    }
  });
}

// Rank 0 hears of the missing collective though no call of its own waits for the device.
void leave_out_a_collective(const World::Options& options) {
  World world(options);
  at::Tensor t = at::ones({1024}, at::TensorOptions().device(world.device()));
  world.all().all_reduce(t);
  const Progress progress(world);
  if (world.rank() == 1) return leave_out(progress);
  world.all().all_reduce(t);
  progress.say("waits for the device");
  (void)t.sum().item<float>();  // returns once the watch has aborted the group
  progress.say("the device has answered");
  const Error error = error_of_later_calls(world.all(), t);
  const std::string text = error.what();
  progress.say("its calls end with: " + text);
  for (const char* part : {"student.all", "all_reduce", "sequence=2", "last_completed=1"})
    require(text.find(part) != std::string::npos, std::string(part) + " in: " + text);
}

void hang_scenario() { leave_out_a_collective(device_options()); }
void hang_sharing_scenario() { leave_out_a_collective(sharing_options()); }

// Groups that are `connected` hang in kernels: ranks 0 and 3 have those of two groups on the device
// at once. NCCL connects a group in its first collective, so that otherwise the calls do not
// return.
void leave_out_collectives_of_all_groups(bool connected) {
  World world(sharing_options());
  const auto ones = [&] { return at::ones({1024}, at::TensorOptions().device(world.device())); };
  at::Tensor t = ones(), u = ones(), v = ones();
  world.all().all_reduce(v);
  if (connected) {
    world.tp().all_reduce(t);
    world.dp().all_reduce(u);
  }
  (void)(t + u + v).sum().item<float>();
  const Progress progress(world);
  if (world.rank() == 1) return leave_out(progress);
  const Error error = error_of([&] {
    progress.say("queues all_reduce of tp");
    Work one = world.tp().all_reduce_async(t);
    progress.say("queues all_reduce of dp");
    Work two = world.dp().all_reduce_async(u);
    progress.say("queues all_reduce of all, again and again");
    throw error_of_later_calls(world.all(), v);
  });
  progress.say(std::string("its calls end with: ") + error.what());
  require(std::string(error.what()).find("all_reduce") != std::string::npos, error.what());
}

void hang_two_groups_scenario() { leave_out_collectives_of_all_groups(true); }
void hang_connecting_scenario() { leave_out_collectives_of_all_groups(false); }

void run_ranks(const std::string& scenario, const Layout& layout) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = scenario, .layout = layout}, layout.world_size());
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait(Deadline::after(180s)), 0) << scenario;
}

// With a rank 1 that leaves out collectives. The others end some 7 s after the first collective
// (timeout, then a second that the clock leaves to the thread that asks), or, where the watch ends
// their processes, 30 s later.
void run_ranks_that_hang(const std::string& scenario, const Layout& layout) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = scenario, .layout = layout, .timeout = 5s},
                           layout.world_size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (r == 1) continue;
    std::fprintf(stderr, "the test waits for rank %zu, process %d\n", r,
                 static_cast<int>(ranks[r].pid()));
    EXPECT_EQ(ranks[r].wait(Deadline::after(180s)), 0) << scenario << ", rank " << r;
  }
  std::fprintf(stderr, "the test has rank 1 end, process %d\n", static_cast<int>(ranks[1].pid()));
  ranks[1].write_line("end");
  EXPECT_EQ(ranks[1].wait(Deadline::after(180s)), 0) << scenario << ", rank 1";
}

TEST(GpuWorld, CollectivesOfNcclGiveTheSums) {
  RETORT_NEEDS_DEVICES(2);
  const int64_t n = std::min<int64_t>(device_under_test.num_devices, 4);
  run_ranks("nccl", {.dp = n});
  if (n == 4) run_ranks("nccl", {.tp = 2, .dp = 2});
}

TEST(GpuWorld, CollectivesOfNcclBetweenRanksOfOneDeviceGiveTheSums) {
  RETORT_NEEDS_DEVICES(1);
  run_ranks("sharing", {.dp = 2});
  run_ranks("sharing", {.tp = 2, .dp = 2});
}

TEST(GpuWorld, AHungCollectiveOfRanksOnOneDeviceEndsWithAnErrorThatNamesIt) {
  RETORT_NEEDS_DEVICES(1);
  run_ranks_that_hang("hang_sharing", {.dp = 2});
}

// Without lazy loading of kernels: the first launch of one then waits for no kernel that hangs. If
// only this variant passes, or only the other's log says that the device did not answer, it was the
// lazy loading.
TEST(GpuWorld, AHungCollectiveOfRanksOnOneDeviceEndsWithAnErrorWhereModulesAreLoadedEagerly) {
  RETORT_NEEDS_DEVICES(1);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // for the children
  run_ranks_that_hang("hang_sharing", {.dp = 2});
  ::unsetenv("CUDA_MODULE_LOADING");
}

TEST(GpuWorld, TwoHungGroupsOfRanksOnOneDeviceEndWithAnError) {
  RETORT_NEEDS_DEVICES(1);
  run_ranks_that_hang("hang_two_groups", {.tp = 2, .dp = 2});
}

TEST(GpuWorld, GroupsOfRanksOnOneDeviceThatCannotConnectEndWithAnError) {
  RETORT_NEEDS_DEVICES(1);
  run_ranks_that_hang("hang_connecting", {.tp = 2, .dp = 2});
}

TEST(GpuWorld, RanksOnOneDeviceGoThroughHostMemory) {
  RETORT_NEEDS_DEVICES(1);
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);  // for the children
  run_ranks("shared", {.dp = 2});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(GpuWorld, MoreRanksThanDevicesAreRefused) {
  RETORT_NEEDS_DEVICES(1);
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  run_ranks("too_many", {.dp = 2});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(GpuWorld, AHungCollectiveEndsWithAnErrorThatNamesIt) {
  RETORT_NEEDS_DEVICES(2);
  run_ranks_that_hang("hang", {.dp = 2});
}

}  // namespace
}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  retort::gpu_testing::find_device();
  return ranks_or_tests(argc, argv,
                        {{"nccl", nccl_scenario},
                         {"shared", shared_scenario},
                         {"too_many", too_many_scenario},
                         {"sharing", sharing_scenario},
                         {"hang", hang_scenario},
                         {"hang_sharing", hang_sharing_scenario},
                         {"hang_two_groups", hang_two_groups_scenario},
                         {"hang_connecting", hang_connecting_scenario}});
}
