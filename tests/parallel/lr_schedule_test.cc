#include "parallel/lr_schedule.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/sizes.h"
#include "tests/parallel/goldens.h"

namespace retort::parallel {
namespace {

struct Case {
  std::string golden;
  LrSchedule schedule;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.golden; }

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::pair<std::string, LrSchedulerType>> types{
      {"constant", LrSchedulerType::kConstant},
      {"linear", LrSchedulerType::kLinear},
      {"cosine", LrSchedulerType::kCosine}};
  for (const auto& [warmup, total] :
       {std::pair<int64_t, int64_t>{0, 10}, {3, 17}, {1, 1}, {20, 10}}) {
    const std::string tag = "/" + std::to_string(warmup) + "/" + std::to_string(total);
    for (const auto& [name, type] : types)
      all.push_back(
          {"lr/" + name + tag,
           {.type = type, .learning_rate = 3e-4, .warmup_steps = warmup, .max_steps = total}});
    for (const int64_t cycles : {1, 3})
      if (warmup < total)
        all.push_back({"lr/restarts_" + std::to_string(cycles) + tag,
                       {.type = LrSchedulerType::kCosineWithRestarts,
                        .learning_rate = 3e-4,
                        .warmup_steps = warmup,
                        .max_steps = total,
                        .num_cycles = cycles}});
    if (warmup == 0 || warmup == 3)
      all.push_back({"lr/cosine_min" + tag,
                     {.type = LrSchedulerType::kCosine,
                      .learning_rate = 3e-4,
                      .min_lr = 2e-5,
                      .warmup_steps = warmup,
                      .max_steps = total}});
  }
  return all;
}

std::vector<Case> stable_cases() {
  std::vector<Case> all;
  for (const auto& [warmup, total, cooldown] :
       {std::tuple<int64_t, int64_t, int64_t>{0, 10, 4}, {3, 17, 5}, {3, 17, 14}, {2, 9, 1}})
    for (const auto& [name, type] : EnumNames<LrCooldownType>::values)
      all.push_back({"lr/wsd/" + std::string(name) + "/" + std::to_string(warmup) + "/" +
                         std::to_string(total) + "/" + std::to_string(cooldown),
                     {.type = LrSchedulerType::kWarmupStableDecay,
                      .learning_rate = 3e-4,
                      .warmup_steps = warmup,
                      .max_steps = total,
                      .cooldown_steps = cooldown,
                      .cooldown_type = type}});
  all.push_back({"lr/wsd_min",
                 {.type = LrSchedulerType::kWarmupStableDecay,
                  .learning_rate = 3e-4,
                  .min_lr = 0.75e-4,
                  .max_steps = 10,
                  .cooldown_steps = 4,
                  .cooldown_type = LrCooldownType::kOneMinusSqrt}});
  return all;
}

// transformers' lr_end is min_lr.
std::vector<Case> power_cases() {
  std::vector<Case> all;
  for (const auto& [warmup, total] :
       {std::pair<int64_t, int64_t>{0, 10}, {3, 17}, {1, 1}, {20, 10}}) {
    const std::string tag = "/" + std::to_string(warmup) + "/" + std::to_string(total);
    for (const int64_t timescale : {0, 5})
      all.push_back({"lr/inverse_sqrt_" + std::to_string(timescale) + tag,
                     {.type = LrSchedulerType::kInverseSqrt,
                      .learning_rate = 3e-4,
                      .warmup_steps = warmup,
                      .max_steps = total,
                      .timescale = timescale}});
    if (warmup >= total) continue;
    const LrSchedule ends{
        .learning_rate = 3e-4, .min_lr = 2e-5, .warmup_steps = warmup, .max_steps = total};
    for (const auto& [name, power] :
         {std::pair<std::string, double>{"1", 1.0}, {"2", 2.0}, {"0.5", 0.5}}) {
      LrSchedule polynomial = ends;
      polynomial.type = LrSchedulerType::kPolynomial;
      polynomial.power = power;
      all.push_back({"lr/polynomial_" + name + tag, polynomial});
    }
    LrSchedule ahead = ends;
    ahead.type = LrSchedulerType::kCosineWarmupWithMinLr;
    all.push_back({"lr/cosine_warmup_min" + tag, ahead});
  }
  return all;
}

class LrScheduleParity : public ::testing::TestWithParam<Case> {};

TEST_P(LrScheduleParity, EqualsTransformers) {
  const std::vector<double> expected = testing::Goldens().at(GetParam().golden);
  ASSERT_GE(std::ssize(expected), GetParam().schedule.max_steps);
  for (size_t step = 0; step < expected.size(); ++step)
    EXPECT_NEAR(GetParam().schedule.at(to_int64(step)), expected[step], 1e-15) << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(All, LrScheduleParity, ::testing::ValuesIn(cases()));
INSTANTIATE_TEST_SUITE_P(Stable, LrScheduleParity, ::testing::ValuesIn(stable_cases()));
INSTANTIATE_TEST_SUITE_P(Powers, LrScheduleParity, ::testing::ValuesIn(power_cases()));

TEST(LrSchedule, EndsAtMinLrAndStaysThere) {
  for (auto type :
       {LrSchedulerType::kLinear, LrSchedulerType::kCosine, LrSchedulerType::kPolynomial}) {
    const LrSchedule s{
        .type = type, .learning_rate = 1.0, .min_lr = 0.25, .warmup_steps = 2, .max_steps = 10};
    EXPECT_DOUBLE_EQ(s.at(0), 0.0);
    EXPECT_DOUBLE_EQ(s.at(1), 0.5);
    EXPECT_DOUBLE_EQ(s.at(2), 1.0);
    EXPECT_DOUBLE_EQ(s.at(6), 0.625);  // half way, for all
    EXPECT_DOUBLE_EQ(s.at(10), 0.25);
    EXPECT_DOUBLE_EQ(s.at(50), 0.25);
  }
}

TEST(LrSchedule, ACosineOneUpdateAheadIsAtMinLrInItsLastStepAndStaysThere) {
  const LrSchedule s{.type = LrSchedulerType::kCosineWarmupWithMinLr,
                     .learning_rate = 1.0,
                     .min_lr = 0.25,
                     .warmup_steps = 2,
                     .max_steps = 10};
  EXPECT_DOUBLE_EQ(s.at(0), 0.5);
  EXPECT_DOUBLE_EQ(s.at(1), 1.0);
  EXPECT_DOUBLE_EQ(s.at(5), 0.625);  // half way
  EXPECT_DOUBLE_EQ(s.at(9), 0.25);
  EXPECT_DOUBLE_EQ(s.at(50), 0.25);
}

TEST(LrSchedule, RestartsAtThePeakAndStaysAtMinLrAfterTheEnd) {
  const LrSchedule s{.type = LrSchedulerType::kCosineWithRestarts,
                     .learning_rate = 1.0,
                     .min_lr = 0.25,
                     .warmup_steps = 2,
                     .max_steps = 10,
                     .num_cycles = 2};
  EXPECT_DOUBLE_EQ(s.at(1), 0.5);
  EXPECT_DOUBLE_EQ(s.at(2), 1.0);
  EXPECT_DOUBLE_EQ(s.at(4), 0.625);  // half way down
  EXPECT_DOUBLE_EQ(s.at(6), 1.0);
  EXPECT_DOUBLE_EQ(s.at(10), 0.25);
  EXPECT_DOUBLE_EQ(s.at(50), 0.25);
}

}  // namespace
}  // namespace retort::parallel
