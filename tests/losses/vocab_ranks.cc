#include "tests/losses/vocab_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "tests/support/process.h"

namespace retort::losses::testing {

using testing_support::ChildProcess;

void expect_ranks_succeed(const std::string& scenario, int64_t ranks) {
  const parallel::StoreServer store("127.0.0.1");
  std::vector<ChildProcess> children;
  for (int64_t rank = 0; rank < ranks; ++rank)
    children.push_back(ChildProcess::spawn(
        {.role = scenario,
         .args = {std::to_string(rank), std::to_string(ranks), std::to_string(store.port())},
         .env = {},
         .program = {}}));
  for (ChildProcess& child : children)
    EXPECT_EQ(child.wait(Deadline::after(std::chrono::seconds(100))), 0) << scenario;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not true: " + what);
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
  if (const auto role = testing_support::spawned_role()) {
    try {
      const std::vector<std::string> args = testing_support::spawned_args();
      parallel::World::Options options{.role = "student",
                                       .layout = {.tp = std::stoll(args.at(1))},
                                       .rank = std::stoll(args.at(0))};
      options.store_port = static_cast<uint16_t>(std::stoi(args.at(2)));
      options.store_prefix = "run/student/0/";
      options.timeout = std::chrono::seconds(60);
      parallel::World world(options);
      losses::testing::scenarios().at (*role)(world.tp());
      return 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: %s\n", role->c_str(), e.what());
      return 1;
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
