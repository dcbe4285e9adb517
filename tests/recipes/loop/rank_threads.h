// The ranks of a data-parallel student as threads of one process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/world.h"
#include "tests/support/sanitizer.h"
#include "tests/support/thrown.h"

namespace retort::test {

// What each of `dp` ranks threw in `run`, which has the rank's world and whose collectives wait at
// most `timeout`. No world ends before all ranks are done.
inline std::vector<std::optional<Error>> run_rank_threads(
    int64_t dp, const std::function<void(parallel::World& world)>& run,
    std::chrono::milliseconds timeout = std::chrono::seconds(30) * kSlowness) {
  parallel::StoreServer store("127.0.0.1");
  const auto size = static_cast<size_t>(dp);
  std::vector<std::unique_ptr<parallel::World>> worlds(size);
  std::vector<std::optional<Error>> errors(size);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      parallel::World::Options options{.role = "student", .layout = {.dp = dp}};
      options.rank = static_cast<int64_t>(rank);
      options.store_port = store.port();
      options.store_prefix = "run/student/0/";
      options.timeout = timeout;
      errors[rank] = thrown([&] {
        worlds[rank] = std::make_unique<parallel::World>(std::move(options));
        run(*worlds[rank]);
      });
    });
  for (std::thread& thread : threads)
    thread.join();
  return errors;
}

}  // namespace retort::test
