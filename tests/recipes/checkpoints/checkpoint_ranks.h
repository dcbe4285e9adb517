// The ranks of a student as child processes that do what the test tells them, a command at a time:
// train, save, load.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "tests/support/process.h"

namespace retort::recipes::testing {
namespace fs = std::filesystem;

// In a child: main() of the test calls it when it was spawned as "student". Answers each line of
// the test with one of its own, "ok" or "error <code> <message>":
//   train            one optimizer step with gradients that depend on the step and the parameter's
//                    name alone
//   save             CheckpointStore::save
//   finish           CheckpointStore::finish
//   check FOLDER     whether parameters and optimizer state are the slices of that checkpoint's
//                    tensors
//   limit BYTES      files of this process may not grow beyond it (-1: any size)
int run_student();

// In the test.
class Ranks {
 public:
  struct Options {
    parallel::Layout layout;
    fs::path source;  // the model
    fs::path run_folder;
    std::optional<fs::path> load;  // a checkpoint to start from
    bool async = false;
    int64_t save_total_limit = 0;
    std::chrono::milliseconds timeout{60'000};  // of a collective
  };
  explicit Ranks(const Options& options);

  // Tells all ranks, then hears all: a line for each.
  std::vector<std::string> ask(const std::string& command);
  // Tells all; expects "ok" of each.
  void expect_ok(const std::string& command);
  std::string ask_one(size_t rank, const std::string& command);
  test::ChildProcess& operator[](size_t rank) { return children_.at(rank); }
  size_t size() const { return children_.size(); }

 private:
  parallel::StoreServer store_{"127.0.0.1"};
  std::vector<test::ChildProcess> children_;
};

// What differs between two checkpoints, by file; empty: the same bytes. state/loop.json, which
// names the layout, is not compared, nor state/COMPLETE, which has a checksum of it.
std::string difference(const fs::path& a, const fs::path& b);

}  // namespace retort::recipes::testing
