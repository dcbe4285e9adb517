#include "engines/wire/json_object.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {

std::string body_text(const nlohmann::json& body, const std::string& field) {
  try {
    return body.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kInvalidArgument, field + ": holds bytes that are not UTF-8");
  }
}

nlohmann::json json_object(const std::string& text, const std::string& door) {
  nlohmann::json answer = json_object_or_null(text);
  if (answer.is_object()) return answer;
  throw Error(ErrorCode::kCorrupt, door + ": the answer is no JSON object");
}

nlohmann::json json_object_or_null(const std::string& text) {
  if (json_nesting(text) > kMaxJsonNesting) return nullptr;
  nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
  if (!answer.is_object()) answer = nullptr;
  return answer;
}

std::string json_excerpt(const std::string& text) { return json_quote(text.substr(0, 200)); }

}  // namespace retort::engines
