// Writes option structs as YAML through their fields(): what YamlReader reads back as the same
// values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "launch/yaml/reader.h"

namespace retort::launch {

// Whether text means itself without quotes, in block and in flow style.
bool is_plain_text(const std::string& text);

// One value as YAML on one line. `${` in text is written `$${`, so that it is not expanded again.
std::string yaml_text(bool value);
std::string yaml_text(int64_t value);
std::string yaml_text(double value);
std::string yaml_text(const std::string& value);
std::string yaml_text(Duration value);
std::string yaml_text(ShortDuration value);
std::string yaml_text(ByteSize value);
std::string yaml_text(const TextOrList& value);
std::string yaml_text(const FreeBlock& value);
std::string yaml_text(const JsonBlock& value);
std::string yaml_key(const std::string& key);

// A value of any field type in flow style: "[uv]", "{a: 1}", "null".
template <class T>
std::string yaml_flow(const T& value) {
  // What holds other values.
  if constexpr (detail::kIsOptional<T>) {
    return value ? yaml_flow(*value) : "null";
  } else if constexpr (detail::kIsVector<T>) {
    std::string text;
    for (const auto& item : value)
      text += (text.empty() ? "" : ", ") + yaml_flow(item);
    return "[" + text + "]";
  } else if constexpr (detail::kIsMap<T>) {
    std::string text;
    for (const auto& [key, item] : value)
      text += (text.empty() ? "" : ", ") + yaml_key(key) + ": " + yaml_flow(item);
    return "{" + text + "}";
  } else if constexpr (detail::OptionStruct<T>) {
    std::string text;
    auto visit = [&text](const char* name, auto& field, const char*) {
      text += (text.empty() ? "" : ", ") + std::string(name) + ": " + yaml_flow(field);
    };
    T copy = value;
    copy.fields(visit);
    return "{" + text + "}";

    // What is one word.
  } else if constexpr (NamedChoice<T>) {
    return value.text;
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(enum_name(value));
  } else {
    return yaml_text(value);
  }
}

// The fields of one struct in block style, one line each, at an indentation; nested structs as
// blocks, the rest in flow style. Maps of text called `names_only` are written with null for each
// value.
class YamlWriter {
 public:
  explicit YamlWriter(int indent = 0, std::string names_only = "")
      : indent_(static_cast<size_t>(indent), ' '), names_only_(std::move(names_only)) {}

  template <class T>
  void operator()(const char* name, T& value, const char*) {
    put(name, value);
  }
  const std::string& str() const { return text_; }

 private:
  template <class T>
  void put(const std::string& key, T& value) {
    if constexpr (detail::kIsOptional<T>) {
      if (value) return put(key, *value);
      line(key, "null");
    } else if constexpr (detail::OptionStruct<T>) {
      line(key, "");
      YamlWriter inner(static_cast<int>(indent_.size()) + 2, names_only_);
      value.fields(inner);
      text_ += inner.str();
    } else if constexpr (detail::kIsMap<T>) {
      if constexpr (detail::OptionStruct<typename T::mapped_type>) {
        line(key, value.empty() ? "{}" : "");
        YamlWriter inner(static_cast<int>(indent_.size()) + 2, names_only_);
        for (auto& [name, item] : value)
          inner.put(yaml_key(name), item);
        text_ += inner.str();
      } else {
        line(key, key == names_only_ ? names_of(value) : yaml_flow(value));
      }
    } else if constexpr (detail::kIsVector<T>) {
      if constexpr (detail::OptionStruct<typename T::value_type>) {
        line(key, value.empty() ? "[]" : "");
        for (const auto& item : value)
          text_ += indent_ + "  - " + yaml_flow(item) + "\n";
      } else {
        line(key, yaml_flow(value));
      }
    } else {
      line(key, yaml_flow(value));
    }
  }

  template <class Map>
  static std::string names_of(const Map& map) {
    std::string text;
    for (const auto& [name, value] : map)
      text += (text.empty() ? "" : ", ") + yaml_key(name) + ": null";
    return "{" + text + "}";
  }

  void line(const std::string& key, const std::string& value) {
    text_ += indent_ + key + ":" + (value.empty() ? "" : " " + value) + "\n";
  }

  std::string indent_;
  std::string names_only_;
  std::string text_;
};

}  // namespace retort::launch
