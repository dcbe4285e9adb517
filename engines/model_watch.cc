#include "engines/model_watch.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "engines/random_ids.h"

namespace retort::engines {
namespace {

constexpr uint64_t kWatchSeed = 0x7761746368;
// What no chance at all counts: JSON has no infinity.
constexpr double kLeast = -1e30;

}  // namespace

std::string to_json(const FirstNumbers& first) {
  std::vector<double> given = first.given;
  for (double& value : given)
    value = std::max(value, kLeast);
  return nlohmann::json{{"given", given}, {"tolerance", first.tolerance}}.dump() + "\n";
}

FirstNumbers read_first_numbers(const std::string& json) {
  try {
    const nlohmann::json read = nlohmann::json::parse(json);
    return {.given = read.at("given"), .tolerance = read.at("tolerance")};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCorrupt, std::string("no first numbers of an engine: ") + error.what());
  }
}

ModelWatch::ModelWatch(std::shared_ptr<Engine> engine, Options options)
    : engine_(std::move(engine)),
      options_(options),
      // Whatever the model is, another one gives random ids other numbers.
      question_(score_all(random_ids(kWatchSeed, 0, kWatchTokens, options.vocab_rows))),
      first_{.given = {}, .tolerance = options.tolerance},
      due_(Clock::now()) {}

FirstNumbers ModelWatch::begin(const std::optional<FirstNumbers>& earlier, Deadline deadline) {
  if (earlier) first_ = *earlier;
  if (can_be_asked()) compare(ask(deadline).get(deadline));
  due_ = Clock::now() + options_.interval;
  return first_;
}

void ModelWatch::look() {
  if (!can_be_asked()) return;
  if (open_ && open_->ready()) {
    Future<Numbers> answer = std::move(*open_);
    open_.reset();
    try {
      compare(answer.get());
    } catch (const Error& error) {
      // Behind many others it may have had no turn: whether the engine hangs they will show.
      if (error.code() != ErrorCode::kTimeout) throw;
    }
  }
  if (open_ || Clock::now() < due_) return;
  due_ = Clock::now() + options_.interval;
  open_ = ask(Deadline::after(options_.timeout));
}

bool ModelWatch::can_be_asked() const {
  const Abilities can = engine_->abilities();
  return options_.rewards ? can.rewards > 0 : can.scores;
}

Future<ModelWatch::Numbers> ModelWatch::ask(Deadline deadline) const {
  if (!options_.rewards)
    return engine_->score(question_, deadline).then([](const Scored& scored) {
      return Numbers(scored.given.begin(), scored.given.end());
    });

  const std::vector<int32_t>& ids = question_.token_ids;
  const auto middle = ids.begin() + kWatchTokens / 2;
  return engine_
      ->reward({.prompt = {ids.begin(), middle},
                .completion = {middle, ids.end()},
                .label = options_.label},
               deadline)
      .then([](double reward) { return Numbers{reward}; });
}

void ModelWatch::compare(Numbers now) {
  if (first_.given.empty()) {
    first_.given = std::move(now);
    return;
  }
  // Of an earlier process they may be of another model's vocabulary.
  double largest = now.size() == first_.given.size() ? 0 : -kLeast;
  for (size_t i = 0; i < now.size() && i < first_.given.size(); ++i)
    largest =
        std::max(largest, std::abs(std::max(now[i], kLeast) - std::max(first_.given[i], kLeast)));
  if (largest <= first_.tolerance) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the engine's numbers for the same tokens changed while the run went on: another "
              "model, or other weights, under the same address; what was answered since its last "
              "look is not to be trusted: resume from a checkpoint before it")
      .with("largest_difference", largest)
      .with("tolerance", first_.tolerance);
}

}  // namespace retort::engines
