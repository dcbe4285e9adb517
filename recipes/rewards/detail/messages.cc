#include "recipes/rewards/detail/messages.h"

#include <cmath>

namespace retort::rewards::detail {

Json to_json(const RewardInput& input) {
  Json fields = Json::object();
  for (const auto& [name, value] : input.fields)
    fields[name] = value;
  Json json;
  json["prompt"] = input.prompt;
  json["question"] = input.question;
  json["completion"] = input.completion;
  json["reference"] = input.reference.empty() ? Json() : Json(input.reference);
  json["num_tokens"] = input.num_tokens;
  json["truncated"] = input.truncated;
  json["fields"] = std::move(fields);
  // The record of an episode was checked where it was read.
  if (input.episode) json["messages"] = Json::parse(input.episode->messages);
  return json;
}

std::string dump(const Json& value) {
  // A model may write bytes that are no UTF-8, for which dump() would throw; they are replaced.
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool read_score(const Json& value, std::optional<double>& score, std::string& why) {
  score.reset();
  if (value.is_null()) return true;
  if (!value.is_number()) {
    why = std::string("a score is ") + value.type_name() + "; expected a number or null";
    return false;
  }
  score = value.get<double>();
  if (std::isfinite(*score)) return true;
  why = "a score is not finite";
  return false;
}

}  // namespace retort::rewards::detail
