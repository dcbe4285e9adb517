// Votes: whose error each rank gets, votes inside votes, and that no rank waits for one that
// failed.
#include "parallel/vote.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <memory>
#include <stdexcept>

#include "tests/parallel/rank_process.h"

namespace retort::parallel::testing {
namespace {

using namespace std::chrono_literals;

// A rank that waits for the timeout of a collective fails its test.
constexpr auto kCollectiveTimeout = 600s;
void expect_ranks_pass(const std::string& scenario, Layout layout) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = scenario, .layout = layout, .timeout = kCollectiveTimeout},
                  layout.world_size());
  expect_success(std::move(ranks));
}

// What this rank itself failed with.
void require_own(const Error& error, ErrorCode code, const std::string& message) {
  require(error.code() == code && error.message() == message, error.what());
  require(!failed_rank(error, "student"), std::string("this rank met ") + error.what());
}

// What the vote brought from `rank`.
void require_told(const Error& error, ErrorCode code, const std::string& message, int rank) {
  require(error.code() == code && error.message() == message, error.what());
  require(failed_rank(error, "student") == rank, std::string("who met ") + error.what());
}

template <class Exception>
bool throws(const std::function<void()>& body) {
  try {
    body();
  } catch (const Exception&) {
    return true;
  }
  return false;
}

void require_usable(Group& group) {
  require(run_on_all(group, [] { return 7; }) == 7, "a vote passes");
  require(group.all_reduce(int64_t{1}) == group.size(), "all ranks are in step");
}

// ---- whose error

void check_results(Group& all) {
  run_on_all(all, [] {});
  const auto pointer = run_on_all(all, [] { return std::make_unique<int>(3); });
  require(*pointer == 3, "what fn returned");
}

// Ranks 1 and 2 fail, each with an error of its own.
void check_errors(Group& all) {
  const int rank = all.rank();
  const Error error = error_of([&] {
    run_on_all(all, [&] {
      if (rank > 0)
        throw Error(ErrorCode::kPeerLost, "lost by " + std::to_string(rank), "far/away.cc:7", {})
            .with("peer", "teacher/0");
    });
  });
  if (rank > 0) {
    require_own(error, ErrorCode::kPeerLost, "lost by " + std::to_string(rank));
  } else {
    require_told(error, ErrorCode::kPeerLost, "lost by 1", 1);
    require(error.origin() == "far/away.cc:7", error.origin());
    require(std::string(error.what()) ==
                "lost by 1 [peer_lost peer=teacher/0 group=student.all failed_rank=1]",
            error.what());
  }
  require(!failed_rank(error, "teacher"), "no rank of a teacher");
}

void check_complaint(Group& all) {
  std::string complaint = "replaced below: ";
  const Error error = error_of([&] {
    run_on_all(
        all,
        [&] {
          complaint = "nothing was saved: ";
          if (all.rank() == 2) throw Error(ErrorCode::kResourceExhausted, "no space");
        },
        complaint);
  });
  if (all.rank() == 2)
    require_own(error, ErrorCode::kResourceExhausted, "nothing was saved: no space");
  else
    require_told(error, ErrorCode::kResourceExhausted, "nothing was saved: no space", 2);
}

// What is no Error stays what it is on its rank; the others get its first line.
void check_foreign(Group& all) {
  const auto standard = [&] {
    if (all.rank() == 0) throw std::out_of_range("beyond the end\nand more");
  };
  const auto of_libtorch = [&] {
    if (all.rank() == 0) at::zeros({2}).view({3});
  };
  if (all.rank() == 0) {
    require(throws<std::out_of_range>([&] { run_on_all(all, standard); }), "std::out_of_range");
    require(throws<c10::Error>([&] { run_on_all(all, of_libtorch); }), "c10::Error");
    return;
  }
  require_told(error_of([&] { run_on_all(all, standard); }), ErrorCode::kRemote, "beyond the end",
               0);
  const Error error = error_of([&] { run_on_all(all, of_libtorch); });
  require(error.code() == ErrorCode::kRemote && error.message().find('\n') == std::string::npos,
          error.what());
}

// Rank 1 fails at the first of three pieces, when the others have not come to the vote yet.
void check_pieces(Group& all) {
  const Error error = error_of([&] {
    Vote vote(all);
    for (int piece = 0; piece < 3; ++piece)
      vote.attempt([&] {
        if (all.rank() == 1 && piece == 0) throw Error(ErrorCode::kCorrupt, "piece 0");
      });
    vote.cast();
  });
  require(error.code() == ErrorCode::kCorrupt, error.what());
  require(failed_rank(error, "student").has_value() == (all.rank() != 1), error.what());
}

// A call to another role whose time is up is a failure like any other.
void check_timeout_elsewhere(Group& all) {
  const Error late =
      Error(ErrorCode::kTimeout, "no answer").with("group", "teacher.tp").with("op", "forward");
  const Error error = error_of([&] {
    run_on_all(all, [&] {
      if (all.rank() == 0) throw late;
    });
  });
  if (all.rank() > 0) require_told(error, ErrorCode::kTimeout, "no answer", 0);
}

// Rank 1 throws at once and casts no vote: what meets the others' ballots is its next one.
void check_broken_group(Group& all) {
  const auto work = [&] {
    if (all.rank() == 1)
      throw Error(ErrorCode::kTimeout, "late").with("group", "student.tp").with("op", "all_reduce");
  };
  if (all.rank() == 1) {
    require_own(error_of([&] { run_on_all(all, work); }), ErrorCode::kTimeout, "late");
    run_on_all(all, [] {});
  } else {
    run_on_all(all, work);
  }
}

}  // namespace

void errors_scenario() {
  World world(child_world_options());
  for (const auto check : {check_results, check_errors, check_complaint, check_foreign,
                           check_pieces, check_timeout_elsewhere, check_broken_group}) {
    check(world.all());
    require_usable(world.all());
  }
}

TEST(Vote, BringsTheErrorOfTheLowestFailedRankToTheOthers) {
  expect_ranks_pass("errors", {.dp = 3});
}

TEST(Vote, OfOneRankChangesNothingButAddsTheComplaint) {
  World world({.role = "student"});
  EXPECT_EQ(run_on_all(world.all(), [] { return 5; }), 5);
  EXPECT_THROW(run_on_all(world.all(), [] { throw std::out_of_range("x"); }), std::out_of_range);
  const Error plain = error_of([&] {
    run_on_all(
        world.all(), [] { throw Error(ErrorCode::kCorrupt, "torn"); }, "file: ");
  });
  EXPECT_EQ(std::string(plain.what()), "file: torn [corrupt]");
}

// ---- votes inside of votes

namespace {

// Rank 1 fails before it comes to the inner vote, where the others are.
void check_crossing(Group& all) {
  bool passed = false;
  const Error error = error_of([&] {
    run_on_all(all, [&] {
      if (all.rank() == 1) throw Error(ErrorCode::kInvalidArgument, "a bad row");
      run_on_all(all, [] {});
      passed = true;
    });
  });
  require(!passed, "the inner vote ends with it");
  if (all.rank() == 1)
    require_own(error, ErrorCode::kInvalidArgument, "a bad row");
  else
    require_told(error, ErrorCode::kInvalidArgument, "a bad row", 1);
}

// Every rank is at another depth, and two of them failed: the outermost failure is the result.
void check_three_depths(Group& all) {
  const int rank = all.rank();
  const Error error = error_of([&] {
    run_on_all(all, [&] {
      if (rank == 2) throw Error(ErrorCode::kUnavailable, "outer");
      run_on_all(all, [&] {
        if (rank == 0) throw Error(ErrorCode::kCorrupt, "middle");
        run_on_all(all, [] {});
      });
    });
  });
  if (rank == 0) require_own(error, ErrorCode::kCorrupt, "middle");
  if (rank == 1) require_told(error, ErrorCode::kUnavailable, "outer", 2);
  if (rank == 2) require_own(error, ErrorCode::kUnavailable, "outer");
}

// Where fn keeps the failure of the inner vote to itself, the outer one still ends with it.
void check_kept_failure(Group& all) {
  const Error error = error_of([&] {
    run_on_all(all, [&] {
      if (all.rank() == 0) throw Error(ErrorCode::kMismatch, "two models");
      for (int i = 0; i < 2; ++i) {
        try {
          run_on_all(all, [] {});
        } catch (const Error&) {
          continue;
        }
        throw std::runtime_error("an inner vote passed");
      }
    });
  });
  if (all.rank() > 0) require_told(error, ErrorCode::kMismatch, "two models", 0);
}

// A failure of the inner vote itself is that of the outer one too, with the same rank's name.
void check_inner_failure(Group& all) {
  const Error error = error_of([&] {
    run_on_all(all, [&] {
      run_on_all(all, [&] {
        if (all.rank() == 2) throw Error(ErrorCode::kCorrupt, "inner");
      });
    });
  });
  if (all.rank() < 2) require_told(error, ErrorCode::kCorrupt, "inner", 2);
}

}  // namespace

void nested_scenario() {
  World world(child_world_options());
  for (const auto check : {check_crossing, check_kept_failure}) {
    check(world.all());
    require_usable(world.all());
  }
  if (world.size() < 3) return;
  for (const auto check : {check_three_depths, check_inner_failure}) {
    check(world.all());
    require_usable(world.all());
  }
}

TEST(Vote, InsideOfAVoteEndsWithTheOuterOne) {
  expect_ranks_pass("nested", {.dp = 2});
  expect_ranks_pass("nested", {.dp = 3});
}

// Rank 3 fails in the vote of its replica. Rank 2 brings that to the vote of all, as the lowest
// rank there that has failed; the others learn who met it.
void messenger_scenario() {
  World world(child_world_options());
  const int64_t rank = world.rank();
  const Error error = error_of([&] {
    run_on_all(world.all(), [&] {
      run_on_all(world.tp(), [&] {
        if (rank == 3) throw Error(ErrorCode::kCorrupt, "torn");
      });
    });
  });
  if (rank == 3) return require_own(error, ErrorCode::kCorrupt, "torn");
  require_told(error, ErrorCode::kCorrupt, "torn", 3);
}

TEST(Vote, NamesWhoMetTheErrorAndNotWhoBringsIt) {
  expect_ranks_pass("messenger", {.tp = 2, .dp = 2});
}

// The votes of two groups cannot meet: rank 1 gives up its own, and rank 0 sees it leave.
void two_groups_scenario() {
  World world(child_world_options());
  const bool fails = world.rank() == 1;
  const Error error = error_of([&] {
    run_on_all(world.all(), [&] {
      if (fails) throw Error(ErrorCode::kInvalidArgument, "a bad row");
      run_on_all(world.tp(), [] {});
    });
  });
  if (fails) return require_own(error, ErrorCode::kInvalidArgument, "a bad row");
  require(error.code() == ErrorCode::kCollective || error.code() == ErrorCode::kTimeout,
          error.what());
  require(std::string(error.what()).find("group=student.tp") != std::string::npos, error.what());
}

TEST(Vote, OfAnotherGroupIsNotWaitedForByARankThatFailed) {
  expect_ranks_pass("two_groups", {.tp = 2});
}

}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  return ranks_or_tests(argc, argv,
                        {{"errors", errors_scenario},
                         {"nested", nested_scenario},
                         {"messenger", messenger_scenario},
                         {"two_groups", two_groups_scenario}});
}
