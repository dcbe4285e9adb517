#include "engines/model_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace retort::engines {
namespace {

constexpr uint64_t kWatchSeed = 0x7761746368;

// Random ids: whatever the model is, another one gives them other numbers.
ScoreRequest watch_question(int64_t vocab_rows) {
  ScoreRequest question;
  for (uint64_t i = 0; i < ModelWatch::kWatchTokens; ++i)
    question.token_ids.push_back(
        static_cast<int32_t>(random_bits(kWatchSeed, i) % static_cast<uint64_t>(vocab_rows)));
  question.positions.resize(question.token_ids.size() - 1);
  std::iota(question.positions.begin(), question.positions.end(), 0);
  return question;
}

}  // namespace

ModelWatch::ModelWatch(std::shared_ptr<Engine> engine, Options options)
    : engine_(std::move(engine)),
      options_(options),
      question_(watch_question(options.vocab_rows)),
      due_(Clock::now()) {}

void ModelWatch::look() {
  if (!engine_->abilities().scores) return;
  if (open_ && open_->ready()) {
    Future<Scored> answer = std::move(*open_);
    open_.reset();
    compare(answer.get());
  }
  if (open_ || Clock::now() < due_) return;
  due_ = Clock::now() + options_.interval;
  open_ = engine_->score(question_, Deadline::after(options_.timeout));
}

void ModelWatch::compare(const Scored& now) {
  if (!first_) {
    first_ = now;
    return;
  }
  double largest = 0;
  for (size_t i = 0; i < now.given.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(now.given[i]) -
                                         static_cast<double>(first_->given[i])));
  if (largest <= options_.tolerance) return;
  throw Error(ErrorCode::kMismatch,
              "the engine's numbers for the same tokens changed while the run went on: another "
              "model, or other weights, under the same address; what was answered since its last "
              "look is not to be trusted: resume from a checkpoint before it")
      .with("largest_difference", largest)
      .with("tolerance", options_.tolerance);
}

}  // namespace retort::engines
