#include "recipes/rollout/episode_record.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace retort::recipes {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void corrupt(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "the record of an episode: " + what);
}

const Json* find(const Json& record, const char* key) {
  const auto found = record.find(key);
  return found == record.end() || found->is_null() ? nullptr : &*found;
}

double number(const Json& value, const std::string& name) {
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    corrupt(name + " is " + value.dump() + "; expected a finite number");
  return value.get<double>();
}

int64_t count(const Json& record, const char* key) {
  const Json* value = find(record, key);
  if (!value || !value->is_number_integer() || value->get<int64_t>() < 0)
    corrupt(std::string(key) + " is missing, or no count");
  return value->get<int64_t>();
}

}  // namespace

EpisodeRecord read_episode(std::string_view text) {
  const Json record = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) corrupt("expected a JSON object");
  // Files of samples have it as it is, in a line of theirs.
  if (text.find('\n') != std::string_view::npos) corrupt("it is not one line");

  EpisodeRecord episode;
  if (const Json* reward = find(record, "reward"))
    episode.outcome.reward = number(*reward, "reward");
  if (const Json* metrics = find(record, "metrics")) {
    if (!metrics->is_object()) corrupt("metrics is " + std::string(metrics->type_name()));
    for (const auto& [name, value] : metrics->items())
      episode.metrics.emplace_back(name, number(value, "metrics." + name));
  }

  const Json* messages = find(record, "messages");
  if (!messages || !messages->is_array()) corrupt("messages is no array");
  episode.outcome.messages = messages->dump();

  episode.turns = count(record, "turns");
  episode.calls = count(record, "calls");
  episode.failed_calls = count(record, "failed_calls");
  episode.malformed = count(record, "malformed");
  if (const Json* why = find(record, "unscorable")) {
    if (!why->is_string() || why->get_ref<const std::string&>().empty())
      corrupt("unscorable does not say why");
    episode.outcome.unscorable = why->get<std::string>();
  }
  return episode;
}

}  // namespace retort::recipes
