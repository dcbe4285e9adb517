// AdamW on a device that has our kernels, here the emulated ones on the stand-in device: against
// its formulas in float64, and against torch's loops on the CPU.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/adamw.h"
#include "parallel/parameter_gather.h"
#include "tests/kernels/emulated_kernels.h"
#include "tests/losses/stand_in_device.h"
#include "tests/parallel/rank_process.h"
#include "tests/support/relative_difference.h"

namespace retort::parallel::testing {
namespace {

using emulator::EmulatedKernels;
using test::kMayBeZero;
using test::relative_difference;
using test::stand_in_device;

constexpr int kSteps = 3;
constexpr double kScale = 0.25;

// They live as long as the process, like those of a module.
const EmulatedKernels* kernels_there = nullptr;

void register_kernels() {
  stand_in_device();  // before the first backward pass
  auto kernels = std::make_unique<EmulatedKernels>(1, at::DeviceType::PrivateUse1,
                                                   test::with_open_stand_in);
  kernels_there = kernels.get();
  kernels::register_device_kernels(std::move(kernels));
}

double learning_rate(int step) { return 1e-2 * (1 + 0.25 * step); }

// The numbers of a tensor that is drawn by its seed.
at::Tensor numbers(at::IntArrayRef shape, double seed) {
  const at::Tensor count = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (count * 0.7 + seed).sin().view(shape);
}

// One larger than several chunks of the kernel; most begin on addresses that no wide load takes.
struct Shape {
  std::string name;
  std::vector<int64_t> sizes;
};
const std::vector<Shape> kShapes{{"embed", {301, 65}},
                                 {"norm", {1}},
                                 {"q.weight", {33, 65}},
                                 {"q.bias", {7}},
                                 {"down", {129, 33}}};

at::Tensor gradient(size_t parameter, int step) {
  return numbers(kShapes[parameter].sizes, 3.0 * step + 5 * static_cast<double>(parameter))
      .to(at::kFloat);
}

// The parameters are of `dtype`, the norm of `norm_dtype`.
struct Case {
  at::ScalarType dtype = at::kFloat;
  at::ScalarType norm_dtype = at::kFloat;
  AdamW::Options options;
  double scale = 1;
};

std::vector<NamedParameter> make_parameters(const Case& c, const at::Device& device) {
  std::vector<NamedParameter> parameters;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const at::ScalarType dtype = kShapes[i].name == "norm" ? c.norm_dtype : c.dtype;
    const at::Tensor value = numbers(kShapes[i].sizes, static_cast<double>(i));
    parameters.push_back({kShapes[i].name, value.to(dtype).to(device).requires_grad_(true)});
  }
  return parameters;
}

struct Training {
  std::vector<NamedParameter> parameters;
  GradBuckets buckets;
  AdamW optimizer;

  Training(const Case& c, World& world, const at::Device& device, bool shard = false)
      : parameters(make_parameters(c, device)),
        buckets(parameters, world.dp(), {.bucket_bytes = 40'000, .shard = shard}),
        optimizer(buckets, c.options) {}

  // The gradients are given, the same on all devices and ranks.
  void step(const Case& c, int number) {
    buckets.begin_step();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i)
      buckets.main_grad(i).copy_(gradient(i, number));
    buckets.scale(c.scale);
    optimizer.step(buckets, learning_rate(number));
  }

  at::Tensor part(size_t i) const {
    const GradBuckets::Part part = buckets.part(i);
    return parameters[i].value.detach().flatten().narrow(0, part.begin, part.size());
  }
};

// The formulas of Loshchilov & Hutter in float64, with the float32 betas that the kernel has.
class Reference {
 public:
  explicit Reference(const Case& c) : case_(c) {
    for (const NamedParameter& p : make_parameters(c, at::kCPU)) {
      values.push_back(p.value.detach().to(at::kDouble).flatten());
      exp_avg.push_back(at::zeros_like(values.back()));
      exp_avg_sq.push_back(at::zeros_like(values.back()));
    }
  }

  void step(int number) {
    const AdamW::Options& o = case_.options;
    const double beta1 = static_cast<float>(o.beta1), beta2 = static_cast<float>(o.beta2);
    const double bias1 = 1 - std::pow(o.beta1, number + 1);
    const double bias2 = 1 - std::pow(o.beta2, number + 1);
    const double rate = learning_rate(number);
    for (size_t i = 0; i < values.size(); ++i) {
      const at::Tensor g = gradient(i, number).to(at::kDouble).flatten() * case_.scale;
      exp_avg[i] = exp_avg[i] * beta1 + g * (1 - beta1);
      exp_avg_sq[i] = exp_avg_sq[i] * beta2 + g * g * (1 - beta2);
      const bool decays = !kShapes[i].name.ends_with("norm") && !kShapes[i].name.ends_with(".bias");
      if (decays || o.no_decay_suffixes.empty()) values[i] *= 1 - rate * o.weight_decay;
      values[i] -= exp_avg[i] / bias1 * rate / ((exp_avg_sq[i] / bias2).sqrt() + o.eps);
    }
  }

  std::vector<at::Tensor> values, exp_avg, exp_avg_sq;

 private:
  Case case_;
};

// The state of `got`, which has masters where the parameters are not fp32, beside the reference's;
// of a rank that has parts, these.
void require_close(const Training& got, const Reference& expected, const std::string& where) {
  const std::vector<TensorPiece> state = got.optimizer.state();
  size_t next = 0;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const GradBuckets::Part part = got.buckets.part(i);
    if (part.size() == 0) continue;
    const std::string name = where + " " + kShapes[i].name;
    const auto check = [&](const at::Tensor& values, const at::Tensor& whole, const char* what) {
      const double off =
          relative_difference(values, whole.narrow(0, part.begin, part.size()), kMayBeZero);
      require(off < 1e-6, name + what + " is off by " + std::to_string(off));
    };
    check(state.at(next++).values, expected.exp_avg[i], ".exp_avg");
    check(state.at(next++).values, expected.exp_avg_sq[i], ".exp_avg_sq");
    if (got.parameters[i].value.scalar_type() == at::kFloat) {
      check(got.part(i), expected.values[i], "");
      continue;
    }

    // The weights are the masters, rounded once.
    const at::Tensor& master = state.at(next++).values;
    check(master, expected.values[i], ".master");
    require(at::equal(got.part(i).cpu(), master.cpu().to(got.parameters[i].value.scalar_type())),
            name + " is not its master");
  }
  require(next == state.size(), where + ": all of the state");
}

std::vector<Case> cases() {
  const AdamW::Options decay{.beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
  AdamW::Options groups = decay;
  groups.no_decay_suffixes = {".bias", "norm"};
  std::vector<Case> all;
  for (const auto& [dtype, norm] : {std::pair{at::kFloat, at::kFloat},
                                    {at::kBFloat16, at::kBFloat16},
                                    {at::kBFloat16, at::kFloat}})
    for (const double scale : {1.0, kScale})
      for (const AdamW::Options& options : {AdamW::Options{}, decay, groups})
        all.push_back({.dtype = dtype, .norm_dtype = norm, .options = options, .scale = scale});
  return all;
}

class DeviceAdamW : public ::testing::Test {
 protected:
  World world_{World::Options{.role = "student"}};
};

TEST_F(DeviceAdamW, StepsAreTheFormulas) {
  for (const Case& c : cases()) {
    Training training(c, world_, stand_in_device());
    Reference reference(c);
    for (int number = 0; number < kSteps; ++number) {
      training.step(c, number);
      reference.step(number);
      require_close(training, reference, "step " + std::to_string(number));
    }
    EXPECT_EQ(training.optimizer.num_steps(), kSteps);
  }
}

// The kernel has 1 - beta2 of a float32 beta2, which is 1.3e-5 smaller than the CPU's for 0.999.
TEST_F(DeviceAdamW, StepsAreThoseOfTheCpu) {
  for (const Case& c : cases()) {
    Training there(c, world_, stand_in_device()), here(c, world_, at::kCPU);
    for (int number = 0; number < kSteps; ++number) {
      there.step(c, number);
      here.step(c, number);
    }
    const std::vector<TensorPiece> got = there.optimizer.state(), expected = here.optimizer.state();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(relative_difference(got[i].values, expected[i].values, kMayBeZero), 2e-5)
          << got[i].name;
    for (size_t i = 0; i < kShapes.size(); ++i)
      EXPECT_LT(relative_difference(there.parameters[i].value, here.parameters[i].value),
                here.parameters[i].value.scalar_type() == at::kFloat ? 1e-5 : 4e-3)
          << kShapes[i].name;
  }
}

TEST_F(DeviceAdamW, AStepIsOneLaunchAndReadsNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c{.dtype = dtype, .norm_dtype = dtype, .options = {}, .scale = kScale};
    Training training(c, world_, stand_in_device());
    for (int number = 0; number < kSteps; ++number) {
      const int64_t before = kernels_there->num_launches();
      test::RecordedReads reads;
      training.step(c, number);
      EXPECT_EQ(kernels_there->num_launches() - before, 1);
      EXPECT_TRUE(reads.take().empty());
    }
  }
}

// The table of addresses goes there as all numbers of the host do: once, and not waited for.
TEST_F(DeviceAdamW, WaitsForNoCopyOfItsTable) {
  const Case c{.dtype = at::kBFloat16, .norm_dtype = at::kBFloat16, .options = {}};
  Training training(c, world_, stand_in_device());
  training.buckets.begin_step();
  test::RecordedReads recorded;
  training.optimizer.step(training.buckets, learning_rate(0));
  const std::vector<std::string> copies = recorded.take_copies_to_device();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_TRUE(copies[0].starts_with("Byte")) << copies[0];
  training.optimizer.step(training.buckets, learning_rate(1));
  EXPECT_TRUE(recorded.take_copies_to_device().empty());
}

// Norms that are asked for after the step are those before it: no gradient is written, and the
// scale that is not in them is pending as before.
TEST_F(DeviceAdamW, GradientsAndTheirScaleStayAsTheyAre) {
  const Case c{.dtype = at::kBFloat16, .norm_dtype = at::kBFloat16, .options = {}, .scale = kScale};
  Training there(c, world_, stand_in_device()), here(c, world_, at::kCPU);
  there.step(c, 0);
  here.step(c, 0);
  for (size_t i = 0; i < kShapes.size(); ++i)
    EXPECT_TRUE(at::equal(there.buckets.main_grad(i).cpu(), gradient(i, 0))) << kShapes[i].name;
  EXPECT_EQ(there.buckets.pending_scale(), kScale);
  EXPECT_EQ(here.buckets.pending_scale(), 1);
  EXPECT_NEAR(there.buckets.norm(), here.buckets.norm(), 1e-6 * here.buckets.norm());

  // Without new gradients a second step takes the same ones on both.
  there.optimizer.step(there.buckets, learning_rate(1));
  here.optimizer.step(here.buckets, learning_rate(1));
  for (size_t i = 0; i < kShapes.size(); ++i)
    EXPECT_LT(relative_difference(there.optimizer.state()[3 * i].values,
                                  here.optimizer.state()[3 * i].values),
              1e-6)
        << kShapes[i].name;
}

// As ParameterGather gives them, in the middle of a run here.
TEST_F(DeviceAdamW, NewMemoryOfAParameterIsWritten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c{.dtype = dtype, .norm_dtype = dtype, .options = {}};
    Training training(c, world_, stand_in_device());
    Reference reference(c);
    std::vector<at::Tensor> kept;  // so that its address is not given again
    for (int number = 0; number < kSteps; ++number) {
      for (const NamedParameter& p : training.parameters) {
        at::Tensor value = p.value;
        kept.push_back(value.detach());
        value.set_data(value.detach().clone());
      }
      training.step(c, number);
      reference.step(number);
      require_close(training, reference, "step " + std::to_string(number));
    }
  }
}

TEST_F(DeviceAdamW, Float16TakesTheStepsOfTorch) {
  const Case c{.dtype = at::kHalf, .norm_dtype = at::kFloat, .options = {}, .scale = kScale};
  Training there(c, world_, stand_in_device()), here(c, world_, at::kCPU);
  const int64_t before = kernels_there->num_launches();
  for (int number = 0; number < kSteps; ++number) {
    there.step(c, number);
    here.step(c, number);
  }
  EXPECT_EQ(kernels_there->num_launches(), before);
  EXPECT_EQ(there.buckets.pending_scale(), 1);
  for (size_t i = 0; i < kShapes.size(); ++i)
    EXPECT_TRUE(
        at::equal(there.parameters[i].value.detach().cpu(), here.parameters[i].value.detach()))
        << kShapes[i].name;
}

// Of a world of two ranks: each updates its parts, which begin anywhere in a parameter, and nothing
// else.
void sharded_scenario() {
  World world(child_world_options());
  for (const Case& c : cases()) {
    Training training(c, world, stand_in_device(), /*shard=*/true);
    const ParameterGather gather(training.buckets);  // gives the parameters new memory
    require(training.buckets.sharded(), "the gradients are sharded");
    Reference reference(c);
    for (int number = 0; number < kSteps; ++number) {
      training.step(c, number);
      reference.step(number);
      require_close(training, reference, "step " + std::to_string(number));
    }

    const std::vector<NamedParameter> before = make_parameters(c, at::kCPU);
    for (size_t i = 0; i < kShapes.size(); ++i) {
      const GradBuckets::Part part = training.buckets.part(i);
      const at::Tensor now = training.parameters[i].value.detach().cpu().flatten();
      const at::Tensor then = before[i].value.detach().flatten();
      const auto same = [&](int64_t begin, int64_t end) {
        return at::equal(now.slice(0, begin, end), then.slice(0, begin, end));
      };
      require(same(0, part.begin) && same(part.end, now.numel()),
              "another rank's part of " + kShapes[i].name + " was written");
    }
  }
}

TEST(ShardedDeviceAdamW, UpdatesItsParts) {
  StoreServer store("127.0.0.1");
  expect_success(spawn_ranks(store, {.scenario = "sharded", .layout = {.dp = 2}}, 2));
}

}  // namespace
}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  register_kernels();
  return ranks_or_tests(argc, argv, {{"sharded", sharded_scenario}});
}
