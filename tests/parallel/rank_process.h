// Ranks of a world as child processes of a test: the test starts them by the name of a scenario,
// each runs it and exits 0, or prints why not and exits 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "tests/support/process.h"
#include "tests/support/require.h"
#include "tests/support/thrown.h"

namespace retort::parallel::testing {

struct RankOptions {
  std::string scenario;
  Layout layout;
  std::string prefix = "run/student/0/";
  std::chrono::milliseconds timeout{60'000};  // of the world
};

// In the test. Ranks [first, first + count) of the layout.
std::vector<test::ChildProcess> spawn_ranks(const StoreServer& store, const RankOptions& options,
                                            int64_t count, int64_t first = 0);

// In a child: the world's options as spawn_ranks gave them.
World::Options child_world_options();
// The same for one of several worlds that the child has: of that layout, with keys of its own.
World::Options child_world_options(const std::string& world, const Layout& layout);

// In the test: all of them exit with 0. `limit`: kSlowness times that under a sanitizer.
void expect_success(std::vector<test::ChildProcess>&& ranks,
                    std::chrono::seconds limit = std::chrono::seconds(90));

// In a child: ends it with exit code 1 and this text.
using test::require;
// The same dtype, shape and values.
void require_equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what);

// In a child: the error that body throws; fails when it throws none.
template <class F>
Error error_of(F&& body) {
  const std::optional<Error> error = test::thrown(body);
  require(error.has_value(), "an Error is thrown");
  return *error;
}

using Scenario = std::function<void()>;

// What main() of such a test returns: runs the scenario in a child, the tests elsewhere.
int ranks_or_tests(int argc, char** argv, const std::map<std::string, Scenario>& scenarios);

// The scenarios of parallel_world_test.
void collectives_scenario();
void two_worlds_scenario();
void lost_rank_scenario();
void stopped_rank_scenario();
void absent_rank_scenario();
void grad_sync_scenario();

}  // namespace retort::parallel::testing
