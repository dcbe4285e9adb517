#include "models/config/config_fields.h"

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json_text.h"

namespace retort::models {

ConfigJson parse_config_object(const std::string& text, const std::string& origin) {
  expect_text(text, origin, "JSON");
  if (json_nesting(text) > kMaxJsonNesting) {
    throw Error(ErrorCode::kInvalidArgument, origin + ": the JSON is nested too deeply")
        .with("file", origin);
  }
  ConfigJson json;
  try {
    json = ConfigJson::parse(text);
  } catch (const ConfigJson::exception& e) {
    throw Error(ErrorCode::kInvalidArgument, origin + ": not valid JSON: " + e.what())
        .with("file", origin);
  }
  if (!json.is_object()) {
    throw Error(ErrorCode::kInvalidArgument, origin + ": expected a JSON object")
        .with("file", origin);
  }
  return json;
}

const ConfigJson* ConfigFields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t ConfigFields::integer(const char* key, std::optional<int64_t> fallback,
                              int64_t minimum) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    throw Error(ErrorCode::kInvalidArgument,
                origin_ + ": the key '" + prefix_ + key + "' is missing")
        .with("file", origin_)
        .with("key", prefix_ + key);
  }
  if (!value->is_number_integer() || value->get<int64_t>() < minimum) {
    fail(key, *value, "expected an integer of at least " + std::to_string(minimum));
  }
  return value->get<int64_t>();
}

double ConfigFields::number(const char* key, double fallback, double minimum) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !(value->get<double>() >= minimum))
    fail(key, *value, "expected a positive number");
  return value->get<double>();
}

bool ConfigFields::boolean(const char* key, bool fallback) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, *value, "expected true or false");
  return value->get<bool>();
}

std::string ConfigFields::text(const char* key, const std::string& fallback) const {
  const ConfigJson* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(key, *value, "expected a string");
  return value->get<std::string>();
}

void ConfigFields::fail(const std::string& key, const ConfigJson& value,
                        const std::string& expected) const {
  throw Error(ErrorCode::kInvalidArgument, origin_ + ": " + prefix_ + key + " = " + value.dump() +
                                               " is not supported; " + expected)
      .with("file", origin_)
      .with("key", prefix_ + key)
      .with("value", value.dump());
}

}  // namespace retort::models
