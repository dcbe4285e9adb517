// Reading the keys of a config.json with their checks. Private to models/.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace retort::models {

using ConfigJson = nlohmann::ordered_json;  // keeps the order of the keys

// kInvalidArgument naming `origin` for what is not a JSON object.
ConfigJson parse_config_object(const std::string& text, const std::string& origin);

// The keys of one JSON object. A null value counts as an absent key.
// Errors: kInvalidArgument naming the file, the key (with `prefix` in front) and the value.
// Memory: refers to the object and to `origin`; both must outlive it.
class ConfigFields {
 public:
  ConfigFields(const ConfigJson& object, std::string prefix, const std::string& origin)
      : object_(object), prefix_(std::move(prefix)), origin_(origin) {}

  const ConfigJson* find(const char* key) const;                         // null: absent
  bool present(const char* key) const { return object_.contains(key); }  // null counts here
  const std::string& origin() const { return origin_; }

  // Without a fallback the key must be there.
  int64_t integer(const char* key, std::optional<int64_t> fallback, int64_t minimum) const;
  double number(const char* key, double fallback, double minimum) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;

  [[noreturn]] void fail(const std::string& key, const ConfigJson& value,
                         const std::string& expected) const;

 private:
  const ConfigJson& object_;
  std::string prefix_;
  const std::string& origin_;
};

}  // namespace retort::models
