#include "engines/json_object.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {

nlohmann::json json_object(const std::string& text, const std::string& door) {
  if (json_nesting(text) <= kMaxJsonNesting) {
    nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
    if (answer.is_object()) return answer;
  }
  throw Error(ErrorCode::kCorrupt, door + ": the answer is no JSON object");
}

}  // namespace retort::engines
