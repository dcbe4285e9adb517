// Values that a model wrote, as the JSON text that is passed on: numbers keep their digits,
// whatever their size, and each text has one form, so that equal keys are equal. Private to
// models/text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/text/tool_calls.h"

namespace retort::models::detail {

inline constexpr std::string_view kJsonSpace = " \t\n\r";

// A value of an argument stands in the arguments, and these in the call.
inline constexpr int kArgumentDepth = 2;

// Without white space at both ends.
std::string_view trimmed(std::string_view text);

// Of members of one name the last counts, in the place of the first, as in Python.
class SaidObject {
 public:
  // `key` and `value` are JSON.
  void set(std::string key, std::string value);
  // The JSON of the member of this name; null if there is none.
  const std::string* find(std::string_view name) const;
  std::string json() const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;
  std::unordered_map<std::string, size_t> places_;
};

// The strict JSON of Python's `json`, without what JSON has not: NaN, Infinity, a number that is no
// finite double, half of a surrogate pair. None: the text is something else, deeper than
// kMaxJsonNesting, or has an integer that Python does not read either (above 4300 digits).
//
// read_json() is for the value of an argument, the others for a call.
std::optional<std::string> read_json(std::string_view text);
std::optional<SaidObject> read_json_object(std::string_view text);
// The object that begins at `at`, which is then behind it.
std::optional<SaidObject> read_json_object_at(std::string_view text, size_t& at);

// The call that the object's "name" and these arguments make; none if the name is no text, or the
// arguments are no object.
std::optional<ToolCall> call_of(const SaidObject& call, const std::string& arguments);

}  // namespace retort::models::detail
