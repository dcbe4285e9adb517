#include "parallel/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace retort::parallel {
namespace {

constexpr double kFactor = 2;

bool positive(double value) { return value > 0 && std::isfinite(value); }

}  // namespace

void LossScaler::Options::validate() const {
  const auto require = [](bool ok, const char* what) {
    if (!ok) throw Error(ErrorCode::kInvalidArgument, what);
  };
  require(positive(min_scale), "min_loss_scale must be a finite number above 0");
  require(positive(initial_scale) && initial_scale <= std::numeric_limits<float>::max(),
          "initial_loss_scale must be a number above 0 that float32 holds");
  require(initial_scale >= min_scale, "initial_loss_scale must not be below min_loss_scale");
  require(window >= 1, "loss_scale_window must be at least 1");
}

LossScaler::LossScaler(Options options) : options_(options) {
  options_.validate();
  state_.scale = options_.initial_scale;
}

void LossScaler::back_off() {
  state_ = {.scale = std::max(state_.scale / kFactor, options_.min_scale), .good_steps = 0};
}

void LossScaler::grow_after_good_step() {
  if (++state_.good_steps < options_.window) return;
  const double grown = state_.scale * kFactor;
  state_.good_steps = 0;
  if (grown <= std::numeric_limits<float>::max()) state_.scale = grown;
}

void LossScaler::load_state(const State& state) {
  if (!positive(state.scale) || state.good_steps < 0)
    throw Error(ErrorCode::kCorrupt, "this is no state of a loss scale")
        .with("scale", state.scale)
        .with("good_steps", state.good_steps);
  state_ = state;
}

}  // namespace retort::parallel
