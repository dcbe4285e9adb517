// Gradients that are parts on each rank: copies of a slice over tensor-parallel ranks, an embedding
// tied over two stages; and the norm of a model that no rank holds whole.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/sizes.h"
#include "parallel/grad_buckets.h"
#include "tests/parallel/sharded_scenarios.h"

namespace retort::parallel::testing {
namespace {

constexpr int kMicroBatches = 2;

at::Tensor leaf(int64_t numel) { return at::full({numel}, 0.5).requires_grad_(true); }

// The gradient that rank `rank` computes for parameter `salt` in a micro-batch.
at::Tensor gradient(int64_t rank, int64_t salt, int micro, int64_t numel) {
  return (at::arange(numel, at::kFloat) * 0.31 + static_cast<double>(rank * 5 + salt * 3 + micro))
      .sin();
}

// The sum over all micro-batches.
at::Tensor gradient(int64_t rank, int64_t salt, int64_t numel) {
  return gradient(rank, salt, 0, numel) + gradient(rank, salt, 1, numel);
}

// Parameter i's gradient is gradient(rank_of(i), i); ranks that hold a replica compute the same
// one.
template <class RankOf>
void run_step(const std::vector<NamedParameter>& parameters, GradBuckets& buckets,
              RankOf&& rank_of) {
  buckets.begin_step();
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    buckets.set_last_micro_batch(micro == kMicroBatches - 1);
    at::Tensor loss = at::zeros({});
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& value = parameters[i].value;
      loss = loss + (value * gradient(rank_of(i), to_int64(i), micro, value.numel())).sum();
    }
    loss.backward();
  }
  buckets.finish();
}

void require_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  const double error = (got - expected).norm().item<double>();
  require(error <= 1e-6 * expected.norm().item<double>(),
          what + " is off by " + std::to_string(error));
}

constexpr size_t kSplit = 1;
constexpr size_t kTwoCopies = 2;
constexpr size_t kReplica = 3;

std::vector<NamedParameter> parameters_of_four_ranks(int64_t rank) {
  const ParameterShard two_copies{.shape = {20},
                                  .begin = rank / 2 * 10,
                                  .copies = 2,
                                  .partial_gradient = true,
                                  .counted = rank % 2 == 0};
  return {{"norm", leaf(9), {.copies = 4, .partial_gradient = true, .counted = rank == 0}},
          {"w", leaf(12)},
          {"k", leaf(10), two_copies},
          {"replica", leaf(6), {.copies = 4, .counted = rank == 0}},
          {"norm2", leaf(9), {.copies = 4, .partial_gradient = true, .counted = rank == 0}}};
}

int64_t num_slices(size_t i) {
  if (i == kSplit) return 4;
  return i == kTwoCopies ? 2 : 1;
}

// What rank `rank`'s main_grad(i) should be: the sum over the ranks that have a part of the
// gradient of the same slice.
at::Tensor expected_gradient(size_t i, int64_t rank, int64_t numel) {
  if (i == kReplica) return gradient(0, to_int64(i), numel);
  at::Tensor sum = at::zeros({numel});
  const int64_t ranks_of_a_slice = 4 / num_slices(i);
  for (int64_t other = 0; other < 4; ++other)
    if (other / ranks_of_a_slice == rank / ranks_of_a_slice)
      sum += gradient(other, to_int64(i), numel);
  return sum;
}

// Layout tp 4. Of the parameters w is split, k has two copies of each of two slices, norm four
// copies with a part of the gradient each, and replica four copies that have all of it.
void check_partial_copies() {
  World world(child_world_options("copies", {.tp = 4}));
  const int64_t rank = world.rank();
  for (const bool overlap : {true, false}) {
    const std::vector<NamedParameter> parameters = parameters_of_four_ranks(rank);
    GradBuckets buckets(
        parameters, world.dp(),
        {.bucket_bytes = 40, .overlap = overlap, .tp = &world.tp(), .mp = &world.mp()});
    require(buckets.num_buckets() == 5 && buckets.num_late_buckets() == 3,
            "partial gradients have buckets of their own");
    require(buckets.place(1).bucket == 0 && buckets.place(3).bucket == 1 &&
                buckets.place(0).bucket == 4,
            "and they come last");

    for (int step = 0; step < 2; ++step) {
      run_step(parameters, buckets, [&](size_t i) { return i == kReplica ? int64_t{0} : rank; });

      // Each gradient, and the sum of the squares of every slice of the model.
      double squares = 0;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const int64_t n = parameters[i].value.numel();
        require_close(buckets.main_grad(i), expected_gradient(i, rank, n), parameters[i].name);
        for (int64_t r = 0; r < 4; r += 4 / num_slices(i))
          squares += expected_gradient(i, r, n).to(at::kDouble).square().sum().item<double>();
      }

      // The norm counts each slice once.
      buckets.scale(0.5);
      const double norm = buckets.norm();
      const double expected = 0.5 * std::sqrt(squares);
      require(std::abs(norm / expected - 1) < 1e-6,
              "norm " + std::to_string(norm) + " of " + std::to_string(expected));
      require(world.all().all_reduce(norm, ReduceOp::kMax) == norm &&
                  world.all().all_reduce(norm, ReduceOp::kMin) == norm,
              "the same norm on all ranks");
    }
  }
}

// Layout pp 2, dp 2. Both stages hold the embedding; it counts on the first one.
void check_tied_stages() {
  World world(child_world_options("stages", {.pp = 2, .dp = 2}));
  const Coordinate c = world.coordinate();
  for (const bool shard : {false, true}) {
    const std::vector<NamedParameter> parameters{
        {"embed", leaf(11), {.tied_stages = true, .counted = c.pp == 0}},
        {c.pp == 0 ? "layer.0" : "layer.1", leaf(7)}};
    GradBuckets buckets(parameters, world.dp(),
                        {.embedding = &world.embedding(), .mp = &world.mp(), .shard = shard});
    require(
        buckets.num_buckets() == 2 && buckets.num_late_buckets() == 1 && buckets.sharded() == shard,
        "buckets");
    run_step(parameters, buckets, [&](size_t) { return world.rank(); });

    // All four ranks add to the embedding, the two of a stage to its layer.
    at::Tensor embed = at::zeros({11});
    std::vector<at::Tensor> layers{at::zeros({7}), at::zeros({7})};
    for (int64_t r = 0; r < 4; ++r) {
      embed += gradient(r, 0, 11);
      layers[to_size(r / 2)] += gradient(r, 1, 7);
    }

    const at::Tensor expected[]{embed, layers[to_size(c.pp)]};
    for (size_t i = 0; i < 2; ++i) {
      const GradBuckets::Part part = buckets.part(i);
      if (part.size() > 0)
        require_close(buckets.main_grad_part(i), expected[i].slice(0, part.begin, part.end),
                      parameters[i].name);
    }

    const double norm = buckets.norm();
    const double whole = at::cat({embed, layers[0], layers[1]}).norm().item<double>();
    require(std::abs(norm / whole - 1) < 1e-6,
            "norm " + std::to_string(norm) + " of " + std::to_string(whole));
  }
}

}  // namespace

void late_buckets_scenario() {
  check_partial_copies();
  check_tied_stages();
}

// The same four ranks, in a world after the other.
TEST(LateBuckets, CopiesOfASliceAndStagesOfATiedEmbeddingSumTheirGradients) {
  StoreServer store("127.0.0.1");
  expect_success(spawn_ranks(store, {.scenario = "late_buckets", .layout = {.tp = 4}}, 4));
}

}  // namespace retort::parallel::testing
