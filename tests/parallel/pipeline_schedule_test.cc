// The schedules of a pipeline: lists written by hand, and every small case run without processes.
#include "parallel/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/sizes.h"
#include "tests/parallel/pipeline_simulation.h"
#include "tests/support/thrown.h"

namespace retort::parallel::testing {
namespace {

using Kind = PipelineAction::Kind;

// "F0 B0": forward and backward of micro-batch 0; "F0.1": of its chunk 1.
std::vector<PipelineAction> parse(const std::string& text) {
  std::vector<PipelineAction> actions;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t dot = word.find('.');
    actions.push_back({word[0] == 'F' ? Kind::kForward : Kind::kBackward,
                       dot == std::string::npos ? 0 : std::stoll(word.substr(dot + 1)),
                       std::stoll(word.substr(1))});
  }
  return actions;
}

std::string print(const std::vector<PipelineAction>& actions) {
  std::string text;
  for (const PipelineAction& a : actions)
    text += (a.kind == Kind::kForward ? " F" : " B") + std::to_string(a.micro_batch) + "." +
            std::to_string(a.chunk);
  return text;
}

std::string first_problem(const PipelineRun& run) {
  return run.problems.empty() ? "" : run.problems.front();
}

void for_all_cases(const std::function<void(PipelineCase)>& body) {
  for (int64_t pp = 1; pp <= 8; ++pp)
    for (int64_t virtual_pp = 1; virtual_pp <= (pp == 1 ? 1 : 4); ++virtual_pp)
      for (int64_t m = 1; m <= 16; ++m) {
        SCOPED_TRACE("pp " + std::to_string(pp) + " virtual_pp " + std::to_string(virtual_pp) +
                     " M " + std::to_string(m));
        body({.pp = pp, .virtual_pp = virtual_pp, .micro_batches = m});
      }
}

TEST(PipelineSchedule, OneForwardOneBackwardAsWrittenByHand) {
  const std::vector<std::string> expected{
      "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
      "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
      "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
      "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
  };
  for (int64_t stage = 0; stage < 4; ++stage)
    EXPECT_EQ(print(pipeline_schedule({.pp = 4, .stage = stage, .micro_batches = 8})),
              print(parse(expected[to_size(stage)])));
  EXPECT_EQ(print(pipeline_schedule({.pp = 4, .stage = 0, .micro_batches = 2})),
            print(parse("F0 F1 B0 B1")))
      << "fewer than the warm-up";
  EXPECT_EQ(
      print(pipeline_schedule({.pp = 4, .stage = 1, .micro_batches = 3, .forward_only = true})),
      print(parse("F0 F1 F2")));
  EXPECT_EQ(print(pipeline_schedule({.micro_batches = 3})), print(parse("F0 B0 F1 B1 F2 B2")))
      << "no pipeline";
}

TEST(PipelineSchedule, InterleavedAsWrittenByHand) {
  // pp 2, two chunks, M 4. Warm-up of stage 0: 2 * 1 + 1 * 2 = 4 forwards; of stage 1: 2.
  const std::vector<std::string> complete{
      "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
      "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
  };
  const std::vector<std::string> incomplete{
      "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 B1.1 F2.1 B0.0 B1.0 B2.1 B2.0",
      "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 B1.0 F2.1 B2.1 B2.0",
  };
  for (int64_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(
        print(pipeline_schedule({.pp = 2, .stage = stage, .virtual_pp = 2, .micro_batches = 4})),
        print(parse(complete[to_size(stage)])));
    EXPECT_EQ(
        print(pipeline_schedule({.pp = 2, .stage = stage, .virtual_pp = 2, .micro_batches = 3})),
        print(parse(incomplete[to_size(stage)])));
  }
}

TEST(PipelineSchedule, EverySmallCaseRunsThroughWithTwoMessagesInFlight) {
  int64_t cases = 0;
  for_all_cases([&](PipelineCase c) {
    const PipelineRun run = simulate(c, all_stages(c));
    EXPECT_EQ(first_problem(run), "");
    c.sends_in_flight = 1000;
    EXPECT_DOUBLE_EQ(simulate(c, all_stages(c)).time, run.time)
        << "more messages in flight save no time";
    c.sends_in_flight = kMinimumSendsInFlight;
    c.forward_only = true;
    EXPECT_EQ(first_problem(simulate(c, all_stages(c))), "");
    ++cases;
  });
  EXPECT_EQ(cases, (1 + 7 * 4) * 16);
}

TEST(PipelineSchedule, HoldsAsManyActivationsAsStated) {
  for_all_cases([](const PipelineCase& c) {
    const PipelineRun run = simulate(c, all_stages(c));
    const int64_t total = c.virtual_pp * c.micro_batches;
    for (int64_t stage = 0; stage < c.pp; ++stage) {
      const int64_t live = run.peak_live[to_size(stage)];
      const int64_t behind = c.pp - stage - 1;
      if (c.virtual_pp == 1) {
        EXPECT_EQ(live, std::min(c.pp - stage, c.micro_batches));
      } else {
        const int64_t bound = std::min(2 * behind + (c.virtual_pp - 1) * c.pp + 1, total);
        if (c.micro_batches % c.pp == 0) {
          EXPECT_EQ(live, bound);
        } else {
          EXPECT_LE(live, bound);
        }
      }
    }
  });
}

TEST(PipelineSchedule, IdlesAsLittleAsStated) {
  for_all_cases([](const PipelineCase& c) {
    if (c.virtual_pp > 1 && c.micro_batches % c.pp != 0) return;
    const double expected =
        static_cast<double>(c.pp - 1) / static_cast<double>(c.micro_batches * c.virtual_pp);
    EXPECT_NEAR(simulate(c, all_stages(c)).idle(), expected, 1e-12);
  });
}

TEST(PipelineSchedule, WrongListsAreCaught) {
  const PipelineCase c{.pp = 2, .micro_batches = 3};
  const auto right = all_stages(c);
  ASSERT_EQ(first_problem(simulate(c, right)), "");
  const auto problem_with = [&](const std::string& stage0, const std::string& stage1) {
    return first_problem(simulate(c, {parse(stage0), parse(stage1)}));
  };
  const std::string good0 = "F0 F1 B0 F2 B1 B2";
  const std::string good1 = "F0 B0 F1 B1 F2 B2";
  EXPECT_EQ(problem_with(good0, good1), "");

  // Lists that are wrong by themselves, and lists that do not fit each other.
  EXPECT_EQ(problem_with("F0 F1 B0 F2 B1", good1),
            "stage 0: backward of chunk 0, micro-batch 2 is missing");
  EXPECT_EQ(problem_with(good0, "F0 B0 F1 B1 F1 F2 B2"),
            "stage 1: forward of chunk 0, micro-batch 1 comes twice");
  EXPECT_EQ(problem_with(good0, "F0 B0 B1 F1 F2 B2"),
            "stage 1: backward of chunk 0, micro-batch 1 comes before its forward");
  EXPECT_EQ(problem_with(good0, good1 + " F3"),
            "stage 1: forward of chunk 0, micro-batch 3 does not exist");
  EXPECT_EQ(problem_with(good0, "F1 B1 F0 B0 F2 B2"),
            "stage 1 expects the input of forward of chunk 0, micro-batch 1 and gets that of "
            "forward of chunk 0, micro-batch 0");

  // Without warm-up the stages take turns, which works; a stage that waits for all forwards of
  // another that waits for a backward does not.
  EXPECT_EQ(problem_with("F0 B0 F1 B1 F2 B2", good1), "");
  EXPECT_EQ(problem_with("F0 B0 F1 B1 F2 B2", "F0 F1 F2 B0 B1 B2"),
            "deadlock: stage 0 waits for the input of backward of chunk 0, micro-batch 0; stage 1 "
            "waits for the input of forward of chunk 0, micro-batch 1");

  // The right lists with sends that wait for their receivers.
  PipelineCase waiting = c;
  waiting.sends_in_flight = 0;
  EXPECT_EQ(first_problem(simulate(waiting, right)),
            "deadlock: stage 0 waits until its forward of chunk 0, micro-batch 1 is taken; stage 1 "
            "waits until its backward of chunk 0, micro-batch 0 is taken");
  const PipelineCase one_less{
      .pp = 2, .virtual_pp = 2, .micro_batches = 4, .sends_in_flight = kMinimumSendsInFlight - 1};
  EXPECT_NE(first_problem(simulate(one_less, all_stages(one_less))).find("deadlock"),
            std::string::npos);
}

TEST(PipelineSchedule, NeighboursOfAChunk) {
  EXPECT_EQ(previous_chunk({0, 0}, 4), std::nullopt);
  EXPECT_EQ(previous_chunk({2, 1}, 4), (PipelinePeer{1, 1}));
  EXPECT_EQ(previous_chunk({0, 1}, 4), (PipelinePeer{3, 0}));
  EXPECT_EQ(next_chunk({3, 0}, 4, 2), (PipelinePeer{0, 1}));
  EXPECT_EQ(next_chunk({1, 1}, 4, 2), (PipelinePeer{2, 1}));
  EXPECT_EQ(next_chunk({3, 1}, 4, 2), std::nullopt);
  EXPECT_EQ(next_chunk({0, 0}, 1, 1), std::nullopt);
  // What one action sends is what the action of its label receives.
  EXPECT_EQ(pipeline_output({Kind::kForward, 0, 5}, 3, 4, 2),
            (PipelineMessage{0, {Kind::kForward, 1, 5}}));
  EXPECT_EQ(pipeline_input({Kind::kForward, 1, 5}, 0, 4, 2),
            (PipelineMessage{3, {Kind::kForward, 1, 5}}));
  EXPECT_EQ(pipeline_output({Kind::kBackward, 1, 5}, 0, 4, 2),
            (PipelineMessage{3, {Kind::kBackward, 0, 5}}));
  EXPECT_EQ(pipeline_input({Kind::kBackward, 0, 5}, 3, 4, 2),
            (PipelineMessage{0, {Kind::kBackward, 0, 5}}));
  EXPECT_EQ(pipeline_input({Kind::kForward, 0, 5}, 0, 4, 2), std::nullopt) << "tokens";
  EXPECT_EQ(pipeline_input({Kind::kBackward, 1, 5}, 3, 4, 2), std::nullopt) << "the loss";
  EXPECT_EQ(pipeline_output({Kind::kForward, 1, 5}, 3, 4, 2), std::nullopt);
  EXPECT_EQ(pipeline_output({Kind::kBackward, 0, 5}, 0, 4, 2), std::nullopt);
}

TEST(PipelineSchedule, RefusesNonsense) {
  const std::vector<PipelineOptions> wrong{{.pp = 0},
                                           {.pp = 2, .stage = 2},
                                           {.pp = 2, .stage = -1},
                                           {.pp = 2, .virtual_pp = 0},
                                           {.micro_batches = 0},
                                           {.virtual_pp = 2}};
  for (const PipelineOptions& options : wrong)
    EXPECT_EQ(test::code_of([&] { pipeline_schedule(options); }), ErrorCode::kInvalidArgument)
        << "pp " << options.pp << " stage " << options.stage;
}

}  // namespace
}  // namespace retort::parallel::testing
