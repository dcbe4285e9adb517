#include "recipes/rewards/reward.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards {
namespace {

constexpr const char* kNoRoles = "there are no roles outside a run";

std::unique_ptr<detail::Scorer> make_scorer(const RewardOptions& options, const std::string& name,
                                            const ConnectRoles& connect) {
  switch (options.type) {
    case RewardType::kExactMatch: return detail::make_exact_match(name);
    case RewardType::kNumeric: return detail::make_numeric(name, options);
    case RewardType::kRegex: return detail::make_pattern(name, *options.pattern, false);
    case RewardType::kFormat:
      return detail::make_pattern(name, options.pattern.value_or(std::string(detail::kThinkFormat)),
                                  true);
    case RewardType::kLength: return detail::make_length(options);
    case RewardType::kCommand: return detail::make_command(name, options);
    case RewardType::kHttp: return detail::make_http(name, options);
    case RewardType::kModel:
      if (!connect.model) detail::fail(ErrorCode::kInvalidArgument, name, kNoRoles);
      return detail::make_role(name, connect.model(options));
    case RewardType::kJudge:
      if (!connect.judge) detail::fail(ErrorCode::kInvalidArgument, name, kNoRoles);
      return detail::make_judge(name, options, connect.judge(options));
    case RewardType::kEnvironment: return detail::make_environment(name);
  }
  RETORT_CHECK(false) << "reward type";
  return nullptr;
}

std::vector<std::string> make_names(const std::vector<RewardOptions>& options) {
  std::vector<std::string> names;
  const auto taken = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const RewardOptions& option : options) {
    std::string name = option.name;
    if (name.empty()) {
      const std::string type(enum_name(option.type));
      name = type;
      for (int i = 2; taken(name); ++i)
        name = type + "_" + std::to_string(i);
    } else if (taken(name)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "rewards: two are named '" + name + "'; expected different names");
    }
    names.push_back(name);
  }
  return names;
}

bool is_whole(const RewardInput& input) { return !input.episode || !input.episode->is_lost(); }

}  // namespace

struct RewardSet::Impl {
  std::vector<double> weights;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<detail::Scorer>> scorers;

  std::vector<Scored> score(const std::vector<RewardInput>& inputs);
};

RewardSet::RewardSet(std::vector<RewardOptions> options, bool scores, const ConnectRoles& connect)
    : impl_(std::make_unique<Impl>()) {
  if (options.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "rewards: none is given; expected at least one {type: ...}");
  for (const RewardOptions& option : options)
    option.validate();
  if (std::all_of(options.begin(), options.end(),
                  [](const RewardOptions& option) { return option.weight == 0; }))
    throw Error(ErrorCode::kInvalidArgument,
                "rewards: every weight is 0; expected one that counts");
  impl_->names = make_names(options);
  for (size_t i = 0; i < options.size(); ++i) {
    impl_->weights.push_back(options[i].weight);
    // A rank that does not score knows the names and weights too, but starts no program and asks no
    // role.
    if (scores) impl_->scorers.push_back(make_scorer(options[i], impl_->names[i], connect));
  }
}
RewardSet::~RewardSet() = default;
RewardSet::RewardSet(RewardSet&&) noexcept = default;
RewardSet& RewardSet::operator=(RewardSet&&) noexcept = default;

const std::vector<std::string>& RewardSet::names() const { return impl_->names; }

void RewardSet::stop() {
  for (const auto& scorer : impl_->scorers)
    scorer->stop();
}

std::vector<Scored> RewardSet::score(const std::vector<RewardInput>& inputs) {
  RETORT_CHECK(inputs.empty() || impl_->scorers.size() == impl_->names.size())
      << "a set of rewards that does not score";
  if (std::ranges::all_of(inputs, is_whole)) return impl_->score(inputs);

  // A reward that is asked about half an episode would score what the model was not allowed to end.
  std::vector<RewardInput> whole;
  std::ranges::copy_if(inputs, std::back_inserter(whole), is_whole);
  std::vector<Scored> scores = impl_->score(whole);
  std::vector<Scored> result;
  size_t next = 0;
  for (const RewardInput& input : inputs)
    if (is_whole(input))
      result.push_back(std::move(scores[next++]));
    else
      result.push_back({.total = std::nullopt,
                        .components = std::vector<std::optional<double>>(impl_->names.size())});
  return result;
}

std::vector<Scored> RewardSet::Impl::score(const std::vector<RewardInput>& inputs) {
  std::vector<Scored> result(inputs.size());
  if (inputs.empty()) return result;
  for (size_t reward = 0; reward < scorers.size(); ++reward) {
    const detail::Scores scores = scorers[reward]->score(inputs);
    RETORT_CHECK(scores.size() == inputs.size()) << names[reward];
    for (size_t i = 0; i < inputs.size(); ++i) {
      result[i].components.push_back(scores[i]);
      // A component without a score leaves the total to the others; a total without any component
      // stays empty. A weight of 0 is for a component that is only reported.
      if (scores[i] && weights[reward] != 0)
        result[i].total = result[i].total.value_or(0) + weights[reward] * *scores[i];
    }
  }

  // Each score is finite, but not what large ones come to, with which no other can be compared.
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!std::isfinite(result[i].total.value_or(0)))
      throw Error(ErrorCode::kInvalidArgument,
                  "rewards: the weighted sum of " + detail::sample_name(inputs[i]) +
                      " is infinite; let rewards give smaller numbers, or lower their weights");
  return result;
}

}  // namespace retort::rewards
