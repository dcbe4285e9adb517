// The loss scale against the operator behind torch.amp.GradScaler.update(), over drawn courses of
// steps; its bounds, and what it is restored from.
#include "parallel/loss_scaler.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/thrown.h"

namespace retort::parallel {
namespace {

// Steps of which the marked ones overflow.
std::vector<bool> drawn_course(uint64_t seed, double share) {
  std::mt19937_64 random(seed);
  std::bernoulli_distribution overflows(share);
  std::vector<bool> course(200);
  for (size_t i = 0; i < course.size(); ++i)
    course[i] = overflows(random);
  return course;
}

void take(LossScaler& scaler, bool overflows) {
  if (overflows)
    scaler.back_off();
  else
    scaler.grow_after_good_step();
}

TEST(LossScaler, FollowsGradScaler) {
  for (const int64_t window : {1, 3, 10})
    for (const double share : {0.0, 0.1, 0.5}) {
      constexpr double kInitial = 65536;
      LossScaler scaler({.initial_scale = kInitial, .min_scale = 1e-30, .window = window});
      at::Tensor scale = at::full({1}, kInitial, at::kFloat);
      at::Tensor tracker = at::full({1}, 0, at::kInt);
      double least = kInitial, most = kInitial;
      for (const bool overflows : drawn_course(7 + static_cast<uint64_t>(window), share)) {
        take(scaler, overflows);
        at::_amp_update_scale_(scale, tracker, at::full({1}, overflows ? 1.0 : 0.0, at::kFloat),
                               2.0, 0.5, window);
        ASSERT_EQ(scaler.scale(), scale.item<float>());
        ASSERT_EQ(scaler.state().good_steps, tracker.item<int>());
        least = std::min(least, scaler.scale());
        most = std::max(most, scaler.scale());
      }

      // With window 1 and no overflow it comes to where float32 ends, and stays.
      if (share == 0) {
        EXPECT_GT(most, kInitial);
      }
      if (share == 0.5 && window > 1) {
        EXPECT_LT(least, kInitial);
      }
      EXPECT_LE(most, std::numeric_limits<float>::max());
    }
}

TEST(LossScaler, StopsAtTheLeast) {
  LossScaler scaler({.initial_scale = 6, .min_scale = 2, .window = 5});
  EXPECT_TRUE(scaler.can_back_off());
  scaler.back_off();
  EXPECT_EQ(scaler.scale(), 3);
  EXPECT_TRUE(scaler.can_back_off());
  scaler.back_off();
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_FALSE(scaler.can_back_off());
}

TEST(LossScaler, GoesOnFromItsState) {
  LossScaler whole({.window = 4});
  LossScaler part({.window = 4});
  const std::vector<bool> course = drawn_course(3, 0.2);
  for (size_t i = 0; i < course.size(); ++i) {
    take(whole, course[i]);
    take(part, course[i]);
    LossScaler fresh({.initial_scale = 8, .window = 4});
    fresh.load_state(part.state());
    part = fresh;
    ASSERT_EQ(part.state(), whole.state()) << "step " << i;
  }

  LossScaler scaler({});
  using Limits = std::numeric_limits<double>;
  for (const LossScaler::State& bad : std::vector<LossScaler::State>{
           {0, 0}, {-1, 0}, {Limits::infinity(), 0}, {Limits::quiet_NaN(), 0}, {2, -1}})
    EXPECT_EQ(test::code_of([&] { scaler.load_state(bad); }), ErrorCode::kCorrupt);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScaler, RefusesOptionsByName) {
  const auto refusal = [](const LossScaler::Options& options) {
    return test::message_of([&] { LossScaler scaler(options); });
  };
  EXPECT_NE(refusal({.min_scale = 0}).find("min_loss_scale"), std::string::npos);
  EXPECT_NE(refusal({.initial_scale = -2}).find("initial_loss_scale"), std::string::npos);
  EXPECT_NE(refusal({.initial_scale = 1e39}).find("float32"), std::string::npos);
  EXPECT_NE(refusal({.initial_scale = 1, .min_scale = 2}).find("below min_loss_scale"),
            std::string::npos);
  EXPECT_NE(refusal({.window = 0}).find("loss_scale_window"), std::string::npos);
}

}  // namespace
}  // namespace retort::parallel
