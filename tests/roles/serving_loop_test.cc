// How a serving process shares its thread between calls and work of its own.
#include "roles/serving_loop.h"

#include <gtest/gtest.h>

#include <thread>

namespace retort::roles {
namespace {

using namespace std::chrono_literals;

// Runs jobs that wait until all are done; returns the pieces of work in between.
int64_t work_between(
    int64_t jobs, std::chrono::milliseconds slice, const std::function<void()>& job = [] {}) {
  rpc::HandlerQueue queue(static_cast<size_t>(jobs));
  int64_t done = 0;
  for (int64_t i = 0; i < jobs; ++i)
    queue.try_push([&] {
      job();
      ++done;
    });
  int64_t pieces = 0;
  const int64_t run = run_serving_loop(
      queue, [&] { return done == jobs; }, {},
      [&] {
        ++pieces;
        return true;
      },
      slice);
  EXPECT_EQ(run, jobs);
  return pieces;
}

TEST(ServingLoop, RunsAllJobsThatWaitBetweenTwoPiecesOfWork) {
  EXPECT_EQ(work_between(100, 1h), 1);
}

TEST(ServingLoop, WithoutASliceOneJobAndOnePieceOfWorkTakeTurns) {
  EXPECT_EQ(work_between(100, 0ms), 100);
}

TEST(ServingLoop, ASliceThatIsOverLeavesTheOtherJobsForTheNext) {
  // Each job takes longer than a slice.
  EXPECT_EQ(work_between(3, 1ms, [] { std::this_thread::sleep_for(2ms); }), 3);
}

TEST(ServingLoop, JobsThatComeWhileJobsRunAreOfTheSameSlice) {
  rpc::HandlerQueue queue(2);
  int64_t left = 20;
  std::function<void()> again = [&] {
    if (--left > 0) queue.try_push(again);
  };
  queue.try_push(again);
  EXPECT_EQ(run_jobs(queue, 0ms, 1h), 20);
  EXPECT_EQ(run_jobs(queue, 0ms, 1h), 0);
}

}  // namespace
}  // namespace retort::roles
