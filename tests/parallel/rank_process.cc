#include "tests/parallel/rank_process.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "base/end_process.h"
#include "tests/support/sanitizer.h"

namespace retort::parallel::testing {

using test::ChildProcess;

std::vector<ChildProcess> spawn_ranks(const StoreServer& store, const RankOptions& options,
                                      int64_t count, int64_t first) {
  std::vector<ChildProcess> ranks;
  for (int64_t rank = first; rank < first + count; ++rank)
    ranks.push_back(ChildProcess::spawn(
        {.role = options.scenario,
         .args = {std::to_string(rank), std::to_string(options.layout.tp),
                  std::to_string(options.layout.pp), std::to_string(options.layout.dp),
                  std::to_string(store.port()), options.prefix,
                  std::to_string(options.timeout.count())},
         .env = {},
         .program = {}}));
  return ranks;
}

void expect_success(std::vector<ChildProcess>&& ranks, std::chrono::seconds limit) {
  for (ChildProcess& rank : ranks)
    EXPECT_EQ(rank.wait(Deadline::after(limit * test::kSlowness)), 0);
}

void require_equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  require(got.scalar_type() == expected.scalar_type() && at::equal(got, expected), what);
}

World::Options child_world_options() {
  const std::vector<std::string> args = test::spawned_args();
  World::Options options;
  options.role = "student";
  options.rank = std::stoll(args.at(0));
  options.layout = {
      .tp = std::stoll(args.at(1)), .pp = std::stoll(args.at(2)), .dp = std::stoll(args.at(3))};
  options.store_port = static_cast<uint16_t>(std::stoi(args.at(4)));
  options.store_prefix = args.at(5);
  options.timeout = std::chrono::milliseconds(std::stoll(args.at(6)));
  return options;
}

World::Options child_world_options(const std::string& world, const Layout& layout) {
  World::Options options = child_world_options();
  options.store_prefix += world + "/";
  options.layout = layout;
  return options;
}

int ranks_or_tests(int argc, char** argv, const std::map<std::string, Scenario>& scenarios) {
  if (const auto role = test::spawned_role()) {
    try {
      scenarios.at (*role)();
      end_process(0);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: %s\n", role->c_str(), e.what());
      end_process(1);
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace retort::parallel::testing
