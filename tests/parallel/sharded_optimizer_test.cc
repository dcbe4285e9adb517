// ZeRO-1: an optimizer sharded over dp makes the same updates as one that every rank has whole,
// with its part of the state.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>

#include "parallel/adamw.h"
#include "parallel/parameter_gather.h"
#include "tests/parallel/sharded_scenarios.h"
#include "tests/support/relative_difference.h"

namespace retort::parallel::testing {
namespace {

constexpr int kSteps = 5;
constexpr size_t kWait = 2;  // parameters waited for at once

// A part of the model with everything that trains it. Sizes that no number of ranks divides; one
// parameter is bigger than a bucket.
struct Training {
  std::vector<NamedParameter> parameters;
  GradBuckets buckets;
  ParameterGather gather;
  AdamW optimizer;

  Training(World& world, bool shard, at::ScalarType dtype, at::ScalarType norm_dtype)
      : parameters(make(dtype, norm_dtype)),
        buckets(parameters, world.dp(), {.bucket_bytes = 100, .shard = shard}),
        gather(buckets),
        optimizer(buckets, {.weight_decay = 0.1, .no_decay_suffixes = {".bias"}}) {}

  static std::vector<NamedParameter> make(at::ScalarType dtype, at::ScalarType norm_dtype) {
    std::vector<NamedParameter> parameters;
    const auto add = [&](const char* name, std::vector<int64_t> shape, at::ScalarType type) {
      const int64_t numel = c10::multiply_integers(shape);
      const at::Tensor value =
          (at::arange(numel, at::kDouble) * 0.7 + static_cast<double>(parameters.size())).sin();
      parameters.push_back({name, value.view(shape).to(type).requires_grad_(true)});
    };
    add("embed", {7, 9}, dtype);
    add("q.weight", {5, 3}, dtype);
    add("q.bias", {5}, dtype);
    add("norm", {1}, norm_dtype);
    add("down", {4, 4}, dtype);
    add("last.bias", {2}, dtype);
    return parameters;
  }

  // A loss that depends on the rank's data and on the values of now. Returns the norm.
  double step(int64_t rank, int number) {
    buckets.begin_step();
    for (int micro = 0; micro < 2; ++micro) {
      buckets.set_last_micro_batch(micro == 1);
      at::Tensor loss = at::zeros({});
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (i % kWait == 0) gather.wait(i, std::min(i + kWait, parameters.size()));
        loss = loss + (parameters[i].value * (1.5 + 0.5 * static_cast<double>(rank)) +
                       0.1 * (number + micro))
                          .sin()
                          .sum();
      }
      loss.backward();
    }
    require(!gather.pending(), "every parameter was waited for");
    buckets.finish();
    buckets.scale(0.25);
    const double norm = buckets.norm();
    optimizer.step(buckets, 1e-2);
    gather.launch();
    return norm;
  }
};

// Everything that the dp ranks hold of each state tensor, put together. Every element must be there
// once.
std::map<std::string, at::Tensor> assembled_state(const AdamW& optimizer, Group& dp,
                                                  const std::vector<TensorPiece>& names) {
  std::map<std::string, at::Tensor> result;
  const std::vector<TensorPiece> mine = optimizer.state(true);
  for (const TensorPiece& piece : names) {
    at::Tensor whole = at::zeros({piece.values.numel()});
    at::Tensor count = at::zeros({piece.values.numel()});
    for (const TensorPiece& m : mine) {
      if (m.name != piece.name) continue;
      require(m.shape == piece.shape && m.slice_shape == piece.slice_shape,
              "shapes of the pieces of " + m.name);
      whole.narrow(0, m.begin, m.values.numel()).add_(m.values);
      count.narrow(0, m.begin, m.values.numel()).add_(1);
    }
    dp.all_reduce(whole);
    dp.all_reduce(count);
    require(at::equal(count, at::ones_like(count)),
            "the pieces of " + piece.name + " cover each element once");
    result[piece.name] = whole;
  }
  return result;
}

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.3g", value);
  return buffer;
}

struct Case {
  at::ScalarType dtype, norm_dtype;
};

// The sharded optimizer equals the plain one. The sums are taken in another order when there are
// three ranks, and the kernel rounds the last elements of a tensor, which it does one by one,
// differently from those that it does eight at a time: a part ends elsewhere.
void check_steps(World& world) {
  constexpr double kTolerance = 1e-7;
  for (const Case& c : {Case{at::kFloat, at::kFloat}, Case{at::kBFloat16, at::kBFloat16},
                        Case{at::kBFloat16, at::kFloat}}) {
    Training plain(world, false, c.dtype, c.norm_dtype),
        sharded(world, true, c.dtype, c.norm_dtype);
    require(!plain.buckets.sharded() && sharded.buckets.sharded(), "sharded");
    for (int number = 0; number < kSteps; ++number) {
      const double norm = plain.step(world.rank(), number);
      const double sharded_norm = sharded.step(world.rank(), number);
      require(std::abs(sharded_norm / norm - 1) < 1e-7, "norm");
      require(sharded.gather.pending() && !plain.gather.pending(), "the gather is in flight");

      sharded.gather.wait(0, 1);
      for (size_t i = 0; i < plain.parameters.size(); ++i) {
        sharded.gather.wait(i, i + 1);
        const double error =
            test::relative_difference(sharded.parameters[i].value, plain.parameters[i].value);
        require(error <= kTolerance, plain.parameters[i].name + " is off by " + text(error));
        require(
            sharded.parameters[i].value.requires_grad() && sharded.parameters[i].value.is_leaf(),
            "still a leaf");
      }
    }

    // The parts of the state on all ranks are the plain one.
    const std::vector<TensorPiece> expected = plain.optimizer.state();
    const auto got = assembled_state(sharded.optimizer, world.dp(), expected);
    for (const TensorPiece& piece : expected) {
      const double error = test::relative_difference(got.at(piece.name), piece.values);
      require(error <= kTolerance, piece.name + " is off by " + text(error));
    }
  }
}

// It holds and loads its part of the state.
void check_state(World& world) {
  const int64_t ranks = world.dp().size();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Training plain(world, false, dtype, dtype), sharded(world, true, dtype, dtype);
    const int64_t bytes_each = dtype == at::kFloat ? 8 : 12;
    const int64_t numel = 63 + 15 + 5 + 1 + 16 + 2;
    require(plain.optimizer.state_bytes() == bytes_each * numel, "bytes of all");
    require(world.dp().all_reduce(sharded.optimizer.state_bytes()) == bytes_each * numel,
            "the parts together");
    // A bucket's padding is less than one element for each rank.
    require(sharded.optimizer.state_bytes() <=
                bytes_each * (numel / ranks + sharded.buckets.num_buckets()),
            "bytes of a part");

    for (int number = 0; number < 3; ++number)
      plain.step(world.rank(), number);
    // The state of one layout continues in another; its reader sees a whole tensor and gives the
    // slice that is wanted.
    std::map<std::string, at::Tensor> saved;
    for (const TensorPiece& piece : plain.optimizer.state())
      saved[piece.name] = piece.values.clone();
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < plain.parameters.size(); ++i)
        sharded.parameters[i].value.copy_(plain.parameters[i].value);
    }
    sharded.optimizer.load_state(plain.optimizer.num_steps(), [&](TensorPiece& piece) {
      piece.values.copy_(saved.at(piece.name).narrow(0, piece.begin, piece.values.numel()));
    });
    for (int number = 3; number < kSteps; ++number) {
      plain.step(world.rank(), number);
      sharded.step(world.rank(), number);
    }
    sharded.gather.wait();
    for (size_t i = 0; i < plain.parameters.size(); ++i)
      require(
          test::relative_difference(sharded.parameters[i].value, plain.parameters[i].value) <= 1e-7,
          plain.parameters[i].name + " goes on from the saved state");

    // A gradient that is not finite is named by the rank that has its sum, and the norm tells all.
    sharded.buckets.begin_step();
    sharded.buckets.set_last_micro_batch(true);
    (sharded.parameters[3].value * std::nan("")).sum().backward();
    sharded.buckets.finish();
    require(std::isnan(sharded.buckets.norm()), "the norm is not a number on all ranks");
    const auto names = sharded.buckets.non_finite();
    require(world.dp().all_reduce(int64_t{std::ssize(names)}) == 1, "one rank names it");
    if (!names.empty()) require(names[0] == "norm (norm nan)", names[0]);
  }
}

}  // namespace

// Layout dp 2 or 3.
void sharded_optimizer_scenario() {
  World world(child_world_options());
  check_steps(world);
  check_state(world);
}

TEST(ShardedOptimizer, EqualsThePlainOneAndHoldsAndLoadsItsPartOfTheState) {
  for (const int64_t dp : {2, 3}) {
    StoreServer store("127.0.0.1");
    auto ranks = spawn_ranks(store, {.scenario = "sharded_optimizer", .layout = {.dp = dp}}, dp);
    expect_success(std::move(ranks), std::chrono::seconds(180));
  }
}

}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  return ranks_or_tests(argc, argv,
                        {{"late_buckets", late_buckets_scenario},
                         {"missing_gradients", missing_gradients_scenario},
                         {"sharded_optimizer", sharded_optimizer_scenario}});
}
