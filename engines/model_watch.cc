#include "engines/model_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "engines/random_ids.h"

namespace retort::engines {
namespace {

constexpr uint64_t kWatchSeed = 0x7761746368;

}  // namespace

ModelWatch::ModelWatch(std::shared_ptr<Engine> engine, Options options)
    : engine_(std::move(engine)),
      options_(options),
      // Whatever the model is, another one gives random ids other numbers.
      question_(score_all(random_ids(kWatchSeed, 0, kWatchTokens, options.vocab_rows))),
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
