// Gradients, their norm and AdamW on a device against the same steps on the CPU; sharded over two
// ranks that share a device.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include "parallel/adamw.h"
#include "parallel/parameter_gather.h"
#include "parallel/world.h"
#include "tests/gpu/device_under_test.h"
#include "tests/parallel/rank_process.h"
#include "tests/support/relative_difference.h"

namespace retort::parallel::testing {
namespace {

using test::kMayBeZero;
using test::relative_difference;

constexpr int kSteps = 5;

// Sizes that leave most parameters on addresses that no vector instruction takes; several buckets.
struct Training {
  std::vector<NamedParameter> parameters;
  GradBuckets buckets;
  ParameterGather gather;
  AdamW optimizer;

  Training(World& world, const at::Device& device, at::ScalarType dtype, bool shard = false)
      : parameters(make(device, dtype)),
        buckets(parameters, world.dp(),
                {.bucket_bytes = 40'000, .mp = &world.mp(), .shard = shard}),
        gather(buckets),
        optimizer(buckets, {.weight_decay = 0.1, .no_decay_suffixes = {".bias"}}) {}

  static std::vector<NamedParameter> make(const at::Device& device, at::ScalarType dtype) {
    std::vector<NamedParameter> parameters;
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      const int64_t numel = c10::multiply_integers(shape);
      const at::Tensor value =
          (at::arange(numel, at::kDouble) * 0.7 + static_cast<double>(parameters.size())).sin();
      parameters.push_back({name, value.view(shape).to(dtype).to(device).requires_grad_(true)});
    };
    add("embed", {301, 65});
    add("norm", {1});
    add("q.weight", {33, 65});
    add("q.bias", {7});
    add("down", {129, 33});
    return parameters;
  }

  // The gradients are given: the same numbers on every device. Returns the norm.
  double step(int64_t rank, int number) {
    gather.wait();
    buckets.begin_step();
    for (int micro = 0; micro < 2; ++micro) {
      buckets.set_last_micro_batch(micro == 1);
      std::vector<at::Tensor> losses;
      for (const NamedParameter& p : parameters) {
        const at::Tensor weights = (at::arange(p.value.numel(), at::kDouble) * 0.3 +
                                    static_cast<double>(3 * number + micro + 7 * rank))
                                       .cos();
        losses.push_back(
            (p.value * weights.view(p.value.sizes()).to(p.value.options().requires_grad(false)))
                .sum());
      }
      at::stack(losses).sum().backward();
    }
    buckets.finish();
    buckets.scale(0.25);
    const double norm = buckets.norm();
    optimizer.step(buckets, 1e-2);
    gather.launch();
    return norm;
  }
};

World::Options one_rank(const gpu_testing::DeviceUnderTest& device) {
  return {.role = "student", .layout = {.device = Device::kCuda}, .device_module = device.module};
}

class GpuOptimizer : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(GpuOptimizer, AgreesWithTheCpu) {
  RETORT_NEEDS_DEVICES(1);
  World world(one_rank(device_under_test)), host_world(World::Options{.role = "student"});
  Training device(world, world.device(), GetParam());
  Training host(host_world, at::kCPU, GetParam());
  EXPECT_EQ(device.optimizer.state_bytes(), host.optimizer.state_bytes());

  // The same gradients have the same norm on both, step by step.
  for (int number = 0; number < kSteps; ++number) {
    const double norm = device.step(0, number);
    EXPECT_NEAR(norm / host.step(0, number), 1.0, 1e-6) << number;
  }

  // The state: the masters of bf16 are among it. CUDA's kernel has 1 - beta2 of float32's 0.999,
  // which is 1.3e-5 smaller than the CPU's.
  const std::vector<TensorPiece> got = device.optimizer.state();
  const std::vector<TensorPiece> expected = host.optimizer.state();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].values.device(), world.device()) << got[i].name;
    EXPECT_LT(relative_difference(got[i].values, expected[i].values, kMayBeZero), 2e-5)
        << got[i].name;
  }

  // What the optimizer read, where our kernel leaves the scale pending, and what it made of the
  // parameters: a master beside the middle of two bf16 numbers may round to the other one.
  for (size_t i = 0; i < device.parameters.size(); ++i) {
    EXPECT_EQ(device.buckets.main_grad(i).device(), world.device());
    EXPECT_LT(
        relative_difference(device.buckets.main_grad(i) * device.buckets.pending_scale(),
                            host.buckets.main_grad(i) * host.buckets.pending_scale(), kMayBeZero),
        1e-6)
        << device.parameters[i].name;
    EXPECT_LT(relative_difference(device.parameters[i].value, host.parameters[i].value, kMayBeZero),
              GetParam() == at::kFloat ? 1e-5 : 4e-3)
        << device.parameters[i].name;
  }
}

TEST_P(GpuOptimizer, StateGoesThroughHostMemory) {
  RETORT_NEEDS_DEVICES(1);
  World world(one_rank(device_under_test));
  Training first(world, world.device(), GetParam());
  Training second(world, world.device(), GetParam());
  for (int number = 0; number < 3; ++number)
    first.step(0, number);

  // As a checkpoint has it: copied to the host, and from there into another optimizer.
  std::map<std::string, at::Tensor> saved;
  for (const TensorPiece& piece : first.optimizer.state())
    saved[piece.name] = piece.values.cpu();
  for (size_t i = 0; i < first.parameters.size(); ++i)
    second.parameters[i].value.detach().copy_(first.parameters[i].value.detach().cpu());
  const auto read = [&](TensorPiece& piece) { piece.values.copy_(saved.at(piece.name)); };
  second.optimizer.load_state(first.optimizer.num_steps(), read);

  // From here on both take the same steps, to the bit.
  for (int number = 3; number < kSteps; ++number)
    EXPECT_EQ(first.step(0, number), second.step(0, number));
  for (size_t i = 0; i < first.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(first.parameters[i].value, second.parameters[i].value))
        << first.parameters[i].name;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuOptimizer, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(GpuGradients, WhatIsNotFiniteIsNamed) {
  RETORT_NEEDS_DEVICES(1);
  World world(one_rank(device_under_test));
  Training training(world, world.device(), at::kBFloat16);
  training.step(0, 0);
  EXPECT_TRUE(training.buckets.non_finite().empty());
  training.buckets.main_grad(0)[17][3] = std::numeric_limits<float>::quiet_NaN();
  training.buckets.main_grad(3)[0] = std::numeric_limits<float>::infinity();
  training.buckets.main_grad(4).fill_(std::numeric_limits<float>::max());  // finite all the same
  EXPECT_TRUE(std::isnan(training.buckets.norm()));
  EXPECT_EQ(training.buckets.non_finite(),
            (std::vector<std::string>{"embed (norm nan)", "q.bias (norm inf)"}));
}

TEST(GpuGradients, TwoDevicesInOneListAreRefused) {
  RETORT_NEEDS_DEVICES(1);
  World world(one_rank(device_under_test));
  std::vector<NamedParameter> parameters = Training::make(world.device(), at::kFloat);
  parameters[2].value = parameters[2].value.detach().cpu().requires_grad_(true);
  const Error buckets = error_of([&] { GradBuckets(parameters, world.dp(), {}); });
  const Error optimizer = error_of([&] { AdamW(parameters, {}); });
  for (const Error& e : {buckets, optimizer})
    EXPECT_NE(e.message().find("'q.weight' is on cpu and 'embed' on " + world.device().str()),
              std::string::npos)
        << e.what();
}

// Of a world of two: sharded as whole. Sums of two in either order are the same bits, the kernels'
// last elements may not be.
void sharded_scenario() {
  World::Options options = child_world_options();
  options.layout.device = Device::kCuda;
  options.device_module = DeviceModule::load(gpu_testing::module_path());
  options.share_devices = true;
  World world(options);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Training plain(world, world.device(), dtype), sharded(world, world.device(), dtype, true);
    for (int number = 0; number < kSteps; ++number) {
      const double norm = sharded.step(world.rank(), number),
                   expected = plain.step(world.rank(), number);
      require(std::abs(norm / expected - 1) < 1e-6, "the norms are the same");
    }
    sharded.gather.wait();
    require(2 * sharded.optimizer.state_bytes() < plain.optimizer.state_bytes() + 1000,
            "the state is sharded");
    for (size_t i = 0; i < plain.parameters.size(); ++i)
      require(relative_difference(sharded.parameters[i].value, plain.parameters[i].value,
                                  kMayBeZero) < (dtype == at::kFloat ? 1e-6 : 4e-3),
              "the values of " + plain.parameters[i].name);
  }
}

TEST(GpuGradients, AShardedOptimizerOfTwoRanksOnOneDeviceMakesTheSameUpdates) {
  RETORT_NEEDS_DEVICES(1);
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);  // for the children
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "sharded", .layout = {.dp = 2}}, 2);
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait(Deadline::after(std::chrono::seconds(240))), 0);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  retort::gpu_testing::find_device();
  return ranks_or_tests(argc, argv, {{"sharded", sharded_scenario}});
}
