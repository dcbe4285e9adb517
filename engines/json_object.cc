#include "engines/json_object.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {

namespace {

using Json = nlohmann::json;

}  // namespace

std::string body_text(const Json& body, const std::string& field) {
  try {
    return body.dump();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kInvalidArgument, field + ": holds bytes that are not UTF-8");
  }
}

Json json_object(const std::string& text, const std::string& door) {
  Json answer = json_object_or_null(text);
  if (answer.is_object()) return answer;
  throw Error(ErrorCode::kCorrupt, door + ": the answer is no JSON object");
}

Json json_object_or_null(const std::string& text) {
  if (json_nesting(text) > kMaxJsonNesting) return nullptr;
  Json answer = Json::parse(text, nullptr, false);
  return answer.is_object() ? answer : Json();
}

std::string json_excerpt(const std::string& text) { return json_quote(text.substr(0, 200)); }

}  // namespace retort::engines
