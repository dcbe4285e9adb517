#include "engines/llamacpp/json.h"

#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines::llamacpp {
namespace {

constexpr size_t kExcerptBytes = 120;

// Members of a token's entry that say how it is written.
bool is_dropped(const Json& key) { return key == "bytes" || key == "token"; }

}  // namespace

void refuse_field(const std::string& field, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "the answer's " + field + " " + what);
}

Json parse_json(std::string_view text) {
  if (json_nesting(text) > kMaxJsonNesting)
    throw Error(ErrorCode::kCorrupt, "the answer is nested too deep to be the server's");

  const auto keep = [](int /*depth*/, Json::parse_event_t event, Json& value) {
    return event != Json::parse_event_t::key || !is_dropped(value);
  };
  Json value = Json::parse(text, keep, /*allow_exceptions=*/false);
  if (value.is_discarded())
    throw Error(ErrorCode::kCorrupt,
                "the answer is no JSON: " + json_quote(text.substr(0, kExcerptBytes)) +
                    "; is this llama.cpp's server?");
  return value;
}

std::string excerpt(const Json& value) {
  std::string shown = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > kExcerptBytes) shown = shown.substr(0, kExcerptBytes) + "...";
  return shown;
}

const Json& member(const Json& object, const std::string& field) {
  if (!object.is_object()) refuse_field("body", "is no object: " + excerpt(object));
  const auto found = object.find(field);
  if (found == object.end()) refuse_field(field, "is missing");
  return *found;
}

int64_t integer_of(const Json& value, const std::string& field, int64_t low, int64_t high) {
  const std::string expected =
      "; expected an integer of " + std::to_string(low) + " to " + std::to_string(high);
  if (!value.is_number_integer()) refuse_field(field, "is " + excerpt(value) + expected);
  // An unsigned number above the largest int64_t would turn negative.
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t number = huge ? INT64_MAX : value.get<int64_t>();
  if (huge || number < low || number > high) refuse_field(field, "is " + excerpt(value) + expected);
  return number;
}

int64_t integer(const Json& object, const std::string& field, int64_t low, int64_t high) {
  return integer_of(member(object, field), field, low, high);
}

std::string text(const Json& object, const std::string& field) {
  const Json& value = member(object, field);
  if (!value.is_string()) refuse_field(field, "is " + excerpt(value) + "; expected a text");
  return value.get<std::string>();
}

bool boolean(const Json& object, const std::string& field) {
  const Json& value = member(object, field);
  if (!value.is_boolean()) refuse_field(field, "is " + excerpt(value) + "; expected true or false");
  return value.get<bool>();
}

const Json& array(const Json& object, const std::string& field) {
  const Json& value = member(object, field);
  if (!value.is_array()) refuse_field(field, "is " + excerpt(value) + "; expected a list");
  return value;
}

}  // namespace retort::engines::llamacpp
