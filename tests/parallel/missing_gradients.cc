#include "tests/parallel/missing_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/sizes.h"
#include "parallel/grad_buckets.h"
#include "tests/support/require.h"

namespace retort::parallel::testing {
namespace {

using test::require;

// A bucket each, more of them than reduce-scatters may be in flight.
constexpr size_t kParameters = 9;
constexpr int kGradientSteps = 2, kGradientBatches = 2;
constexpr int64_t kWithout = 1;  // the rank that misses a gradient

struct MissingCase {
  size_t missing = 0;
  // Backward reaches the parameter, by a function that gives it no gradient.
  bool is_reached = false;
  bool shard = false, overlap = true;
};

std::string name_of(const MissingCase& c) {
  return "parameter " + std::to_string(c.missing) + (c.is_reached ? " reached" : "") +
         (c.shard ? " sharded" : "") + (c.overlap ? "" : " at the end");
}

// In the first step the last micro-batch alone lacks it, in the second both do.
bool has_gradient(const MissingCase& c, int64_t rank, size_t parameter, int step, int micro) {
  return rank != kWithout || parameter != c.missing || (step == 0 && micro + 1 < kGradientBatches);
}

int64_t numel_of(size_t parameter) { return 100 + 3 * to_int64(parameter); }

// Whole numbers, so that sums are exact in any order.
at::Tensor gradient(int64_t rank, size_t parameter, int step, int micro) {
  const int64_t shift = 3 * rank + 5 * to_int64(parameter) + 7 * step + micro;
  return ((at::arange(numel_of(parameter)) * 2 + shift) % 13).to(at::kFloat);
}

at::Tensor expected_sum(const MissingCase& c, size_t parameter, int step) {
  at::Tensor sum = at::zeros({numel_of(parameter)});
  for (int64_t rank = 0; rank < 2; ++rank)
    for (int micro = 0; micro < kGradientBatches; ++micro)
      if (has_gradient(c, rank, parameter, step, micro))
        sum += gradient(rank, parameter, step, micro);
  return sum;
}

// x, and to the parameter no gradient.
class Withheld : public torch::autograd::Function<Withheld> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor&) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

// Backward goes from the last parameter to the first.
at::Tensor loss_of(const MissingCase& c, const World& world, const GradBuckets& buckets, int step,
                   int micro) {
  at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(world.device()));
  for (size_t i = 0; i < kParameters; ++i) {
    const at::Tensor& value = buckets.parameter(i).value;
    if (has_gradient(c, world.rank(), i, step, micro))
      loss = loss + (value * gradient(world.rank(), i, step, micro).to(world.device())).sum();
    else if (c.is_reached)
      loss = Withheld::apply(loss, value);
  }
  return loss;
}

using Started = std::function<int64_t()>;

void run_step(const MissingCase& c, World& world, const Started& started, GradBuckets& buckets,
              int step) {
  const int64_t before = started ? started() : 0;
  const auto require_sent = [&](int64_t count, const std::string& when) {
    if (!started) return;
    const int64_t sent = started() - before;
    require(sent == count, name_of(c) + ": " + std::to_string(sent) + " collectives " + when +
                               " instead of " + std::to_string(count));
  };
  const int64_t all = to_int64(kParameters);
  buckets.begin_step();
  for (int micro = 0; micro < kGradientBatches; ++micro) {
    buckets.set_last_micro_batch(micro + 1 == kGradientBatches);
    loss_of(c, world, buckets, step, micro).backward();
  }
  buckets.end_last_backward();
  require_sent(c.overlap ? all : 0, "before finish()");

  // The ranks meet in another group before the step ends, as trainers do with their losses: a rank
  // that waited in backward for the other one's bucket would never come here.
  at::Tensor one = at::ones({1}, at::TensorOptions(at::kFloat).device(world.device()));
  world.dp_pp().all_reduce(one);
  require(one.item<double>() == 2, name_of(c) + ": the ranks meet");
  const int64_t met = started ? started() - before - (c.overlap ? all : 0) : 0;
  buckets.finish();
  require_sent(all + met, "in the step");
}

void run_case(const MissingCase& c, World& world, const Started& started) {
  std::vector<NamedParameter> parameters;
  for (size_t i = 0; i < kParameters; ++i)
    parameters.push_back(
        {"w" + std::to_string(i),
         at::full({numel_of(i)}, 0.5, at::TensorOptions(at::kFloat).device(world.device()))
             .requires_grad_(true)});
  GradBuckets buckets(parameters, world.dp(),
                      {.bucket_bytes = 4, .overlap = c.overlap, .shard = c.shard});
  require(buckets.num_buckets() == to_int64(kParameters), "a bucket for each parameter");

  for (int step = 0; step < kGradientSteps; ++step) {
    run_step(c, world, started, buckets, step);
    for (size_t i = 0; i < kParameters; ++i) {
      const GradBuckets::Part part = buckets.part(i);
      require(at::equal(buckets.main_grad_part(i).cpu(),
                        expected_sum(c, i, step).slice(0, part.begin, part.end)),
              name_of(c) + ", step " + std::to_string(step) + ": the sum of w" + std::to_string(i));
    }
  }
}

}  // namespace

void train_with_missing_gradients(World& world, const std::function<int64_t()>& started) {
  for (const size_t missing : {kParameters - 1, kParameters / 2, size_t{0}})
    for (const bool is_reached : {false, true})
      for (const bool shard : {true, false})
        for (const bool overlap : {true, false})
          run_case(
              {.missing = missing, .is_reached = is_reached, .shard = shard, .overlap = overlap},
              world, started);
}

}  // namespace retort::parallel::testing
