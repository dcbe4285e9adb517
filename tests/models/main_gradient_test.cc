// Gradients of weights in bfloat16 which the backward pass of a device adds to their float32 sums
// by itself: against float64, which a gradient that is rounded to bfloat16 misses by far.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "models/ops/functions.h"
#include "models/ops/tensor_parallel.h"
#include "parallel/grad_buckets.h"
#include "parallel/world.h"
#include "tests/losses/stand_in_device.h"
#include "tests/parallel/rank_process.h"
#include "tests/parallel/stand_in/backends.h"
#include "tests/support/relative_difference.h"
#include "tests/support/require.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using parallel::GradBuckets;
using parallel::NamedParameter;
using parallel::World;
using test::relative_difference;
using test::stand_in_device;

constexpr int64_t kRows = 24, kWidth = 64, kOutputs = 128;
constexpr size_t kWeightBytes = kOutputs * kWidth * 2;
constexpr size_t kWeights = 3;
constexpr int kSteps = 2, kMicroBatches = 3;
// Sums in float32; a rounding to bfloat16 is off by 1e-3.
constexpr double kExact = 1e-6;

// What bfloat16 has of numbers that are drawn by their seed, on the host.
at::Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  const at::Tensor count = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (count * 0.7 + 1.3 * static_cast<double>(seed)).sin().view(shape).to(at::kBFloat16);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

std::vector<at::Tensor> weights_there() {
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < kWeights; ++i)
    weights.push_back(numbers({kOutputs, kWidth}, static_cast<int64_t>(i))
                          .to(stand_in_device())
                          .requires_grad_(true));
  return weights;
}

std::vector<NamedParameter> named(const std::vector<at::Tensor>& weights) {
  std::vector<NamedParameter> parameters;
  for (size_t i = 0; i < weights.size(); ++i)
    parameters.push_back({"w" + std::to_string(i), weights[i]});
  return parameters;
}

// Begins a step with sums that no step may read: its first gradient takes their place.
void begin_step(GradBuckets& buckets) {
  for (size_t i = 0; i < buckets.size(); ++i)
    buckets.main_grad(i).fill_(std::nan(""));
  buckets.begin_step();
}

// The input of a micro-batch and the gradients by the outputs.
struct MicroBatch {
  at::Tensor x;
  std::vector<at::Tensor> dy;

  explicit MicroBatch(int64_t seed) : x(numbers({kRows, kWidth}, 100 * seed + 1)) {
    for (size_t i = 0; i < kWeights; ++i)
      dy.push_back(numbers({kRows, kOutputs}, 100 * seed + 2 + static_cast<int64_t>(i)));
  }
  at::Tensor gradient(size_t weight) const { return product(dy[weight].t(), x); }
  std::vector<at::Tensor> dy_there() const {
    std::vector<at::Tensor> there;
    for (const at::Tensor& one : dy)
      there.push_back(one.to(stand_in_device()));
    return there;
  }
};

// Layers of one input, as q, k and v are.
void run(const MicroBatch& batch, const std::vector<at::Tensor>& weights) {
  torch::autograd::backward(column_linear(batch.x.to(stand_in_device()), weights, {}),
                            batch.dy_there());
}

class MainGradient : public testing::Test {
 protected:
  World world_{World::Options{.role = "student"}};
};

TEST_F(MainGradient, OfEveryMicroBatchIsAddedWithoutARounding) {
  const std::vector<at::Tensor> weights = weights_there();
  GradBuckets buckets(named(weights), world_.dp(), {});
  for (int step = 0; step < kSteps; ++step) {
    std::vector<at::Tensor> expected(kWeights, at::zeros({kOutputs, kWidth}, at::kDouble));
    begin_step(buckets);
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      buckets.set_last_micro_batch(micro + 1 == kMicroBatches);
      const MicroBatch batch(10 * step + micro);
      run(batch, weights);
      for (size_t i = 0; i < kWeights; ++i)
        expected[i] = expected[i] + batch.gradient(i);
    }
    buckets.end_last_backward();
    buckets.finish();
    for (size_t i = 0; i < kWeights; ++i) {
      EXPECT_LT(relative_difference(buckets.main_grad(i), expected[i]), kExact) << i;
      EXPECT_FALSE(weights[i].grad().defined());
    }
  }
}

TEST_F(MainGradient, AnInputGetsTheSumOfAllLayers) {
  const std::vector<at::Tensor> weights = weights_there();
  const MicroBatch batch(3);
  const at::Tensor x = batch.x.to(stand_in_device()).requires_grad_(true);
  torch::autograd::backward(column_linear(x, weights, {}), batch.dy_there());
  at::Tensor expected = at::zeros({kRows, kWidth}, at::kDouble);
  for (size_t i = 0; i < kWeights; ++i)
    expected = expected + product(batch.dy[i], weights[i].detach().cpu());
  EXPECT_LT(relative_difference(x.grad(), expected), 3e-3);
}

// In backward each weight has a product that adds for its own gradient, and one for the input's.
TEST_F(MainGradient, IsNoTensorOfItsOwn) {
  const std::vector<at::Tensor> weights = weights_there();
  const MicroBatch batch(5);
  const auto backward = [&] {
    const at::Tensor x = batch.x.to(stand_in_device()).requires_grad_(true);
    const std::vector<at::Tensor> y = column_linear(x, weights, {});
    const std::vector<at::Tensor> dy = batch.dy_there();
    const int64_t before = test::stand_in_operators();
    const test::RecordedBlocks blocks;
    torch::autograd::backward(y, dy);
    return std::pair(blocks.of_at_least(kWeightBytes), test::stand_in_operators() - before);
  };

  EXPECT_GE(backward().first, static_cast<int64_t>(kWeights)) << "without buckets there is one";
  for (at::Tensor weight : weights)
    weight.mutable_grad().reset();
  GradBuckets buckets(named(weights), world_.dp(), {});
  begin_step(buckets);
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    const auto [large_blocks, operators] = backward();
    EXPECT_EQ(large_blocks, 0) << micro;
    EXPECT_LE(operators, 2 * static_cast<int64_t>(kWeights)) << micro;
  }
}

// As a tied table is: two layers read it, and autograd has a part of its own. It is ready, and its
// bucket sent, when all of them are done.
TEST_F(MainGradient, OfAWeightThatIsUsedSeveralTimes) {
  const at::Tensor weight = weights_there().front();
  const at::Tensor factor = numbers({kOutputs, kWidth}, 77);
  GradBuckets buckets({{"w", weight}}, world_.dp(), {});
  const MicroBatch first(1), second(2);
  const auto backward = [&] {
    torch::autograd::backward({row_linear(first.x.to(stand_in_device()), weight, {}),
                               row_linear(second.x.to(stand_in_device()), weight, {}),
                               (weight * factor.to(stand_in_device())).sum()},
                              {first.dy_there()[0], second.dy_there()[0], at::Tensor()});
  };
  begin_step(buckets);
  buckets.set_last_micro_batch(true);
  backward();
  EXPECT_NE(test::message_of(backward).find("second gradient after its bucket was sent"),
            std::string::npos);
  weight.mutable_grad().reset();
  buckets.finish();
  EXPECT_LT(relative_difference(buckets.main_grad(0),
                                first.gradient(0) + second.gradient(0) + factor.to(at::kDouble)),
            kExact);
}

// Where backward computes a layer again, the layer's weights are leaves of a graph of its own.
TEST_F(MainGradient, OfALayerThatIsComputedAgain) {
  const at::Tensor weight = weights_there().front();
  GradBuckets buckets({{"w", weight}}, world_.dp(), {});
  const MicroBatch batch(4);
  const LayerBody body = [](const at::Tensor& x, const std::vector<at::Tensor>& parameters) {
    return row_linear(x, parameters[0], {});
  };
  const at::Tensor x = batch.x.to(stand_in_device()).requires_grad_(true);
  begin_step(buckets);
  buckets.set_last_micro_batch(true);
  const at::Tensor y = checkpointed(body, x, {weight});
  const at::Tensor dy = batch.dy_there()[0];
  const test::RecordedBlocks blocks;
  torch::autograd::backward({y}, {dy});
  EXPECT_EQ(blocks.of_at_least(kWeightBytes), 0);
  buckets.finish();
  EXPECT_LT(relative_difference(buckets.main_grad(0), batch.gradient(0)), kExact);
  EXPECT_LT(relative_difference(x.grad(), product(batch.dy[0], weight.detach().cpu())), 3e-3);
}

TEST_F(MainGradient, OfAnEmptyMicroBatchIsZero) {
  const std::vector<at::Tensor> weights = weights_there();
  GradBuckets buckets(named(weights), world_.dp(), {});
  begin_step(buckets);
  buckets.set_last_micro_batch(true);
  const at::TensorOptions there = at::TensorOptions(at::kBFloat16).device(stand_in_device());
  const at::Tensor dy = at::zeros({0, kOutputs}, there);
  torch::autograd::backward(column_linear(at::zeros({0, kWidth}, there), weights, {}),
                            {dy, dy, dy});
  buckets.finish();
  EXPECT_EQ(buckets.norm(), 0);
}

// Two ranks, each with its own rows: the buckets' sums are those of both.
void sharded_scenario() {
  const World::Options options = test::on_stand_in(parallel::testing::child_world_options());
  {
    World world(options);
    const std::vector<at::Tensor> weights = weights_there();
    GradBuckets buckets(named(weights), world.dp(),
                        {.bucket_bytes = kOutputs * kWidth * 4, .shard = true});
    test::require(buckets.sharded() && buckets.num_buckets() == 3, "a bucket for each weight");
    for (int step = 0; step < kSteps; ++step) {
      const int64_t before = test::stand_in_collectives(options);
      begin_step(buckets);
      buckets.set_last_micro_batch(true);
      run(MicroBatch(2 * step + world.rank()), weights);
      // Backward itself has sent the buckets, though no gradient came to their parameters' hooks.
      test::require(test::stand_in_collectives(options) - before == buckets.num_buckets(),
                    "each bucket is sent in backward");
      buckets.end_last_backward();
      buckets.finish();

      const MicroBatch first(2 * step), second(2 * step + 1);
      for (size_t i = 0; i < kWeights; ++i) {
        const GradBuckets::Part part = buckets.part(i);
        const at::Tensor whole = (first.gradient(i) + second.gradient(i)).flatten();
        const double off = relative_difference(buckets.main_grad_part(i),
                                               whole.narrow(0, part.begin, part.size()));
        test::require(off < kExact,
                      "the sum of w" + std::to_string(i) + " is off by " + std::to_string(off));
      }
    }
  }
  const auto failure = test::stand_in_failure(options);
  test::require(!failure, failure.value_or(""));
}

// Sequence parallelism's sum of two parts in bfloat16: the bits of the sum that is rounded once.
void rows_scenario() {
  const World::Options options =
      test::on_stand_in(parallel::testing::child_world_options("rows", {.tp = 2}));
  {
    World world(options);
    const at::Tensor first = numbers({kRows, kWidth}, 1), second = numbers({kRows, kWidth}, 2);
    const at::Tensor mine = world.rank() == 0 ? first : second;
    const TensorParallel tp{.group = &world.tp(), .sequence = true};
    const at::Tensor got = sum_and_scatter_rows(mine.to(world.device()), tp);
    const at::Tensor sum = (first.to(at::kFloat) + second.to(at::kFloat)).to(at::kBFloat16);
    test::require(at::equal(got.cpu(), sum.narrow(0, world.rank() * kRows / 2, kRows / 2)),
                  "the sum of two parts");
  }
  const auto failure = test::stand_in_failure(options);
  test::require(!failure, failure.value_or(""));
}

// In one pair of processes, a world after the other.
void two_ranks_scenario() {
  sharded_scenario();
  rows_scenario();
}

TEST(TwoRanks, SumShardedMainGradientsAndRowsAsIfRoundedOnce) {
  const parallel::StoreServer store("127.0.0.1");
  parallel::testing::expect_success(
      parallel::testing::spawn_ranks(store, {.scenario = "two_ranks", .layout = {.dp = 2}}, 2));
}

}  // namespace
}  // namespace retort::models

int main(int argc, char** argv) {
  ::setenv("STAND_IN_DEVICES", "2", 1);  // also for the children
  retort::test::stand_in_device();       // before the first backward pass
  return retort::parallel::testing::ranks_or_tests(
      argc, argv, {{"two_ranks", retort::models::two_ranks_scenario}});
}
