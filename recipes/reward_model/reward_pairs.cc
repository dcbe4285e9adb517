#include "recipes/reward_model/reward_pairs.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace retort::recipes {
namespace {

const std::string* find_column(const data::PreferenceSample& pair, std::string_view name) {
  for (const auto& [column, text] : pair.fields)
    if (column == name) return &text;
  return nullptr;
}

template <class Number>
std::optional<Number> whole_text(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse_pair(const data::PreferenceSample& pair, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, pair.origin + ": " + what);
}

double margin_of(const data::PreferenceSample& pair) {
  const std::string* text = find_column(pair, "margin");
  if (text == nullptr)
    refuse_pair(pair, "'margin' is missing; reward_model.use_margin needs a number in every row");
  const auto margin = whole_text<double>(*text);
  if (!margin || !std::isfinite(*margin))
    refuse_pair(pair, "'margin' is '" + *text + "'; expected a finite number");
  return *margin;
}

int64_t objective_of(const data::PreferenceSample& pair, int64_t num_labels) {
  const std::string* text = find_column(pair, "objective");
  if (text == nullptr && num_labels == 1) return 0;
  const std::string expected = "expected the number of one of the " + std::to_string(num_labels) +
                               " labels (reward_model.num_labels), from 0";
  if (text == nullptr) refuse_pair(pair, "'objective' is missing; " + expected);
  const auto objective = whole_text<int64_t>(*text);
  if (!objective || *objective < 0 || *objective >= num_labels)
    refuse_pair(pair, "'objective' is '" + *text + "'; " + expected);
  return *objective;
}

}  // namespace

PairTarget pair_target(const data::PreferenceSample& pair, const RewardModelOptions& options) {
  return {.margin = options.use_margin ? margin_of(pair) : 0,
          .objective = objective_of(pair, options.num_labels)};
}

RewardPairs::RewardPairs(std::vector<data::Source> sources, const data::DataOptions& options,
                         models::Tokenizer tokenizer, models::ChatTemplate chat,
                         const std::filesystem::path& cache, const RewardModelOptions& reward_model)
    : PreferenceDataset(std::move(sources), options, std::move(tokenizer), std::move(chat), cache),
      reward_model_(reward_model) {}

data::PreferenceSample RewardPairs::make(const Line& line) const {
  data::PreferenceSample pair = PreferenceDataset::make(line);
  // A row whose margin or objective cannot be used is refused here, where rows are read, not in its
  // step.
  pair_target(pair, reward_model_);
  return pair;
}

data::RowSet::Shaping RewardPairs::shaping() const {
  return {.kind = "reward pairs",
          .options = "max_length=" + std::to_string(max_length()) +
                     " num_labels=" + std::to_string(reward_model_.num_labels) + " use_margin=" +
                     std::to_string(reward_model_.use_margin) + " boundary=joined"};
}

}  // namespace retort::recipes
