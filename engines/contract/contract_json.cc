// A contract as a file of a run.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/contract/contract.h"

namespace retort::engines {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

// Writes an object of what fields() names.
struct Writer {
  Json object = Json::object();

  template <class T>
  void operator()(const char* name, T& value, const char*) {
    object[name] = json_of(value);
  }

  template <class T>
  static Json json_of(T& value) {
    if constexpr (kIsOptional<T>) {
      return value ? json_of(*value) : Json(nullptr);
    } else if constexpr (std::is_enum_v<T>) {
      return std::string(enum_name(value));
    } else if constexpr (std::is_same_v<T, Difference>) {
      Writer inner;
      value.fields(inner);
      return inner.object;
    } else {
      return Json(value);
    }
  }
};

[[noreturn]] void corrupt(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "contract of an engine: " + what +
                                       "; delete the file, the next run probes the engine again");
}

// Reads such an object. Every field must be there and no other key, because what a contract of
// another version lacks would be guessed.
struct Reader {
  const Json& object;
  std::string path;  // "local." inside it
  size_t read = 0;

  template <class T>
  void operator()(const char* name, T& value, const char*) {
    const auto found = object.find(name);
    if (found == object.end()) corrupt(path + name + " is missing");
    take(*found, path + name, value);
    ++read;
  }

  template <class T>
  static void take(const Json& json, const std::string& name, T& value) {
    if constexpr (kIsOptional<T>) {
      value.reset();
      if (!json.is_null()) take(json, name, value.emplace());
    } else if constexpr (std::is_enum_v<T>) {
      std::string text;
      take(json, name, text);
      try {
        value = parse_enum<T>(text);
      } catch (const Error& error) {
        corrupt(name + ": " + error.message());
      }
    } else if constexpr (std::is_same_v<T, Difference>) {
      if (!json.is_object()) corrupt(name + " is no object");
      read_object(json, name + ".", value);
    } else {
      take_plain(json, name, value);
    }
  }

  template <class T>
  static void take_plain(const Json& json, const std::string& name, T& value) {
    constexpr bool kText = std::is_same_v<T, std::string>;
    const bool fits = kText                       ? json.is_string()
                      : std::is_same_v<T, bool>   ? json.is_boolean()
                      : std::is_same_v<T, double> ? json.is_number()
                                                  : json.is_number_integer();
    if (!fits) corrupt(name + " has another type than expected");
    value = json.get<T>();
  }

  template <class T>
  static void read_object(const Json& json, const std::string& path, T& value) {
    Reader reader{.object = json, .path = path};
    value.fields(reader);
    if (reader.read != json.size()) corrupt(path + "* has keys that are not known");
  }
};

}  // namespace

std::string to_json(const Contract& contract) {
  Contract copy = contract;
  Writer writer;
  copy.fields(writer);
  return writer.object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Contract contract_from_json(const std::string& text) {
  if (json_nesting(text) > kMaxJsonNesting) corrupt("too deep");
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) corrupt("no JSON object");
  Contract contract;
  Reader::read_object(json, "", contract);
  return contract;
}

}  // namespace retort::engines
