#include "engines/weights/model_watch.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "engines/weights/random_ids.h"

namespace retort::engines {
namespace {

constexpr int64_t kWordTokens = 32;
constexpr const char* kWatchWords = "Write the names of as many colours as you know.";
constexpr uint64_t kWatchSeed = 0x7761746368;
// Stands for a log-probability of -infinity, which JSON cannot write.
constexpr double kLeast = -1e30;

// Random ids serve for any model: another one gives them other numbers.
ScoreRequest question_of(const ModelWatch::Options& options) {
  using Asks = ModelWatch::Asks;
  if (options.asks == Asks::kWords || options.asks == Asks::kNothing) return {};
  return score_all(random_ids(kWatchSeed, 0, ModelWatch::kWatchTokens, options.vocab_rows));
}

}  // namespace

std::string to_json(const FirstNumbers& first) {
  std::vector<double> given = first.given;
  for (double& value : given)
    value = std::max(value, kLeast);
  nlohmann::json json{{"given", given}, {"tolerance", first.tolerance}};
  if (first.words) json["words"] = *first.words;
  return json.dump() + "\n";
}

FirstNumbers read_first_numbers(const std::string& json) {
  try {
    const nlohmann::json read = nlohmann::json::parse(json);
    FirstNumbers first{
        .given = read.at("given"), .tolerance = read.at("tolerance"), .words = std::nullopt};
    if (read.contains("words")) first.words = read.at("words").get<std::string>();
    return first;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCorrupt, std::string("no first numbers of an engine: ") + error.what());
  }
}

ModelWatch::ModelWatch(std::shared_ptr<Engine> engine, Options options)
    : engine_(std::move(engine)),
      options_(options),
      question_(question_of(options)),
      first_{.given = {}, .tolerance = options.tolerance, .words = std::nullopt},
      due_(Clock::now()) {}

FirstNumbers ModelWatch::begin(const std::optional<FirstNumbers>& earlier, Deadline deadline) {
  if (earlier) first_ = *earlier;
  if (can_be_asked()) compare(ask(deadline).get(deadline));
  // Other words than the first ones may come from a near tie. The question is repeated until the
  // first words come back, or kOtherWords others in a row make compare() throw.
  while (other_words_ > 0)
    compare(ask(deadline).get(deadline));
  due_ = Clock::now() + options_.interval;
  return first_;
}

void ModelWatch::look() {
  if (!can_be_asked()) return;
  if (open_ && open_->ready()) {
    Future<Seen> answer = std::move(*open_);
    open_.reset();
    try {
      compare(answer.get());
    } catch (const Error& error) {
      // A look may time out only because many other questions stand before it; if the engine hangs,
      // those will show it. A service that is asked in words may also be away for a moment, which
      // its other callers wait out.
      const bool forgiven = error.code() == ErrorCode::kTimeout ||
                            (options_.asks == Asks::kWords && is_absent(error));
      if (!forgiven) throw;
    }
  }
  if (open_ || Clock::now() < due_) return;
  due_ = Clock::now() + options_.interval;
  open_ = ask(Deadline::after(options_.timeout));
}

WriteRequest ModelWatch::words_question() {
  return {.text = kWatchWords, .max_new_tokens = kWordTokens};
}

bool ModelWatch::can_be_asked() const {
  const Abilities can = engine_->abilities();
  switch (options_.asks) {
    case Asks::kLogProbs: return can.scores;
    case Asks::kReward: return can.rewards > 0;
    case Asks::kWords: return can.writes;
    case Asks::kNothing: return false;
  }
  return false;
}

Future<ModelWatch::Seen> ModelWatch::ask(Deadline deadline) const {
  if (options_.asks == Asks::kWords)
    return engine_->write(words_question(), deadline).then([](Written written) {
      return Seen{.numbers = {}, .words = std::move(written.text)};
    });
  if (options_.asks == Asks::kLogProbs)
    return engine_->score(question_, deadline).then([](const Scored& scored) {
      return Seen{.numbers = {scored.given.begin(), scored.given.end()}, .words = ""};
    });

  // A reward needs a prompt and a completion, so the same ids are cut in the middle.
  const std::vector<int32_t>& ids = question_.token_ids;
  const auto middle = ids.begin() + kWatchTokens / 2;
  return engine_
      ->reward({.prompt = {ids.begin(), middle},
                .completion = {middle, ids.end()},
                .label = options_.label},
               deadline)
      .then([](double reward) { return Seen{.numbers = {reward}, .words = ""}; });
}

void ModelWatch::compare(Seen now) {
  if (options_.asks == Asks::kWords)
    compare_words(std::move(now.words));
  else
    compare_numbers(std::move(now.numbers));
}

void ModelWatch::compare_words(std::string now) {
  if (!first_.words) first_.words = now;
  other_words_ = now == *first_.words ? 0 : other_words_ + 1;
  if (other_words_ < kOtherWords) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the engine's answer to the same question changed while the run went on: another "
              "model under the same address; what was answered since its last look is not to be "
              "trusted: resume from a checkpoint before it")
      .with("first", *first_.words)
      .with("now", now);
}

void ModelWatch::compare_numbers(std::vector<double> now) {
  if (first_.given.empty()) {
    first_.given = std::move(now);
    return;
  }
  // The first numbers may be those of an earlier process, and not as many as now. Then the
  // difference counts as the largest there is.
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
