#include "tests/losses/vocab_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <vector>

#include "tests/parallel/rank_process.h"

namespace retort::losses::testing {

void expect_ranks_succeed(const std::string& scenario, int64_t ranks) {
  SCOPED_TRACE(scenario);
  const parallel::StoreServer store("127.0.0.1");
  parallel::testing::expect_success(
      parallel::testing::spawn_ranks(store, {.scenario = scenario, .layout = {.tp = ranks}}, ranks),
      std::chrono::seconds(100));
}

void require_near(const at::Tensor& mine, const at::Tensor& whole, double tolerance,
                  const std::string& what) {
  require(mine.sizes() == whole.sizes(), "shape of " + what);
  const double norm = whole.to(at::kDouble).norm().item<double>();
  const double off = (mine.to(at::kDouble) - whole.to(at::kDouble)).norm().item<double>();
  require(off <= tolerance * norm, what + " is off by " + std::to_string(off / norm * 1e6) +
                                       "e-6 of " + std::to_string(norm));
}

void require_near(double mine, double whole, double tolerance, const std::string& what) {
  require(std::abs(mine - whole) <= tolerance * std::abs(whole),
          what + " is " + std::to_string(mine) + " instead of " + std::to_string(whole));
}

parallel::VocabShard shard_of(parallel::Group& group, int64_t total) {
  return {&group, parallel::vocab_begin(total, group.size(), group.rank()), total};
}

at::Tensor own_rows(const at::Tensor& whole, const parallel::VocabShard& vocab) {
  if (!whole.defined()) return {};
  const int64_t end = parallel::vocab_end(vocab.total, vocab.group->size(), vocab.group->rank());
  return whole.narrow(0, vocab.begin, end - vocab.begin);
}

Problem own_part(const Problem& problem, const parallel::VocabShard& vocab) {
  Problem part = problem;
  part.weight = own_rows(problem.weight, vocab);
  part.bias = own_rows(problem.bias, vocab);
  return part;
}

at::Tensor all_rows(const at::Tensor& own, const parallel::VocabShard& vocab) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.at(0) = vocab.total;
  at::Tensor all = at::zeros(sizes, at::kFloat);
  own_rows(all, vocab).copy_(own);
  vocab.group->all_reduce(all);
  return all;
}

at::Tensor leaf(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.detach().to(dtype, false, true).requires_grad_() : at::Tensor();
}

}  // namespace retort::losses::testing

int main(int argc, char** argv) {
  using namespace retort;
  std::map<std::string, parallel::testing::Scenario> of_ranks;
  for (const auto& [name, scenario] : losses::testing::scenarios())
    of_ranks[name] = [scenario = scenario] {
      parallel::World world(parallel::testing::child_world_options());
      scenario(world.tp());
    };
  return parallel::testing::ranks_or_tests(argc, argv, of_ranks);
}
