// JSON that llama.cpp's server answers, read field by field.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace retort::engines::llamacpp {

using Json = nlohmann::json;

// kCorrupt: `field` is not what it must be. `what` says what it is, and what was expected.
[[noreturn]] void refuse_field(const std::string& field, const std::string& what);

// The value without the pieces of text that belong to tokens, which nothing here reads and which
// are most of a large answer. kCorrupt for what is no JSON, or nested too deep.
Json parse_json(std::string_view text);
// The first characters of a value, for errors.
std::string excerpt(const Json& value);

// A member of an object. kCorrupt naming `field` if it is missing, or of another kind.
const Json& member(const Json& object, const std::string& field);
int64_t integer(const Json& object, const std::string& field, int64_t low, int64_t high);
std::string text(const Json& object, const std::string& field);
bool boolean(const Json& object, const std::string& field);
const Json& array(const Json& object, const std::string& field);
// `value`, called `field` in errors, as an integer of [low, high].
int64_t integer_of(const Json& value, const std::string& field, int64_t low, int64_t high);

}  // namespace retort::engines::llamacpp
