// Two data-parallel ranks: their reduced gradients are those of one process that saw all the data.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "base/sizes.h"
#include "parallel/grad_buckets.h"
#include "tests/parallel/rank_process.h"

namespace retort::parallel::testing {
namespace {

constexpr int kMicroBatches = 3;

// A small network with a tied weight, a bf16 weight, a weight that only the first rank's data
// reaches, and one that nothing reaches.
struct Network {
  std::vector<NamedParameter> parameters;

  Network() {
    add("embed", {11, 6}, at::kFloat);
    add("up", {6, 9}, at::kFloat);
    add("norm", {9}, at::kBFloat16);
    add("down", {9, 6}, at::kFloat);
    add("branch", {6}, at::kFloat);
    add("unused", {5}, at::kFloat);
  }
  void add(const char* name, at::IntArrayRef shape, at::ScalarType dtype) {
    const int64_t numel = c10::multiply_integers(shape);
    const double phase = static_cast<double>(parameters.size());
    parameters.push_back({name, (at::arange(numel, at::kDouble) * 0.7 + phase)
                                    .sin()
                                    .view(shape)
                                    .to(dtype)
                                    .requires_grad_(true)});
  }
  const at::Tensor& p(size_t i) const { return parameters[i].value; }

  at::Tensor loss(int64_t dp_rank, int micro) const {
    const at::Tensor ids = (at::arange(8, at::kLong) * 3 + dp_rank * 5 + micro).remainder(11);
    at::Tensor hidden = at::embedding(p(0), ids);
    hidden = hidden + at::matmul(at::tanh(at::matmul(hidden, p(1)) * p(2)), p(3));
    if (dp_rank == 0) hidden = hidden * p(4);
    const at::Tensor logits = at::matmul(hidden, p(0).t());
    return at::log_softmax(logits, -1).index({at::arange(8, at::kLong), ids.roll(1)}).neg().sum();
  }
};

// The gradients of both ranks' data, accumulated in one process.
std::vector<at::Tensor> reference_gradients() {
  const Network network;
  std::vector<at::Tensor> sums;
  for (const NamedParameter& p : network.parameters)
    sums.push_back(at::zeros(p.value.sizes()));
  for (int64_t rank = 0; rank < 2; ++rank)
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      network.loss(rank, micro).backward();
      for (size_t i = 0; i < sums.size(); ++i) {
        at::Tensor& grad = network.p(i).mutable_grad();
        if (grad.defined()) sums[i] += grad.to(at::kFloat);
        grad.reset();
      }
    }
  return sums;
}

void run_step(const Network& network, GradBuckets& buckets, int64_t rank) {
  buckets.begin_step();
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    buckets.set_last_micro_batch(micro == kMicroBatches - 1);
    network.loss(rank, micro).backward();
  }
  buckets.finish();
}

// Collectives: two all-reduces.
bool same_bits_on_all_ranks(Group& group, const at::Tensor& tensor) {
  at::Tensor most = tensor.clone();
  at::Tensor least = tensor.clone();
  group.all_reduce(most, ReduceOp::kMax);
  group.all_reduce(least, ReduceOp::kMin);
  return at::equal(most, least);
}

// The sums are those of one process that saw all the data, whether buckets overlap or not.
void check_sums(World& world) {
  const std::vector<at::Tensor> expected = reference_gradients();
  std::vector<std::vector<at::Tensor>> runs;
  for (const bool overlap : {true, false}) {
    const Network network;
    GradBuckets buckets(network.parameters, world.dp(), {.bucket_bytes = 160, .overlap = overlap});
    require(buckets.num_buckets() >= 4, "several buckets");
    for (int step = 0; step < 2; ++step) {
      run_step(network, buckets, world.rank());
      runs.emplace_back();
      for (size_t i = 0; i < buckets.size(); ++i) {
        const at::Tensor got = buckets.main_grad(i);
        const double error = (got - expected[i]).norm().item<double>();
        require(error <= 1e-6 * expected[i].norm().item<double>(),
                buckets.parameter(i).name + " is off by " + std::to_string(error));
        require(same_bits_on_all_ranks(world.dp(), got),
                buckets.parameter(i).name + " has the same bits on all ranks");
        runs.back().push_back(got.clone());
      }
    }
  }

  require(expected[4].norm().item<double>() > 0 && expected[5].norm().item<double>() == 0,
          "the cases it is meant to cover");
  for (const auto& run : runs)
    for (size_t i = 0; i < run.size(); ++i)
      require(at::equal(run[i], runs[0][i]), "overlap changes no bit");
}

// The ranks reach their parameters in opposite orders; buckets of different sizes would meet if
// readiness set the order.
void check_order(World& world) {
  std::vector<NamedParameter> parameters;
  for (int64_t i = 0; i < 6; ++i)
    parameters.push_back({"w" + std::to_string(i), at::ones({100 + i}).requires_grad_(true)});
  GradBuckets buckets(parameters, world.dp(), {.bucket_bytes = 4});
  require(buckets.num_buckets() == 6, "a bucket for each parameter");

  // Backward goes along a chain that begins with the last parameter on one rank, with the first on
  // the other.
  buckets.begin_step();
  buckets.set_last_micro_batch(true);
  at::Tensor chain = at::ones({});
  for (size_t k = 0; k < 6; ++k) {
    const size_t i = world.rank() == 0 ? k : 5 - k;
    chain = (parameters[i].value * static_cast<double>(i + 1)).sum() + chain * 1.0;
  }
  chain.backward();
  buckets.finish();
  for (size_t i = 0; i < 6; ++i)
    require(at::equal(buckets.main_grad(i),
                      at::full({100 + to_int64(i)}, 2.0f * static_cast<float>(i + 1))),
            buckets.parameter(i).name);
}

}  // namespace

void grad_sync_scenario() {
  World world(child_world_options());
  check_sums(world);
  check_order(world);
}

// A rank that waits for a bucket of another order does not wait for long.
TEST(GradSync, TwoRanksEqualOneProcessWithAllTheDataWhateverTheirOrder) {
  StoreServer store("127.0.0.1");
  expect_success(spawn_ranks(
      store, {.scenario = "grad_sync", .layout = {.dp = 2}, .timeout = std::chrono::seconds(20)},
      2));
}

}  // namespace retort::parallel::testing
