// Fields of the JSON that a server answers, each checked where it is read. Private to this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace retort::engines::kserve {

using Json = nlohmann::ordered_json;

// kCorrupt for text that is no JSON, with its beginning.
Json parse_json(std::string_view text);

// Members of `object`, which messages call `where`; kCorrupt if one is missing or of another kind.
std::string text_field(const Json& object, const std::string& name, const std::string& where);
const Json& list_field(const Json& object, const std::string& name, const std::string& where);
// "shape": at most eight sizes, -1 (any) or more.
std::vector<int64_t> shape_field(const Json& object, const std::string& where);

// For messages: at most 80 characters, everything but printable ASCII escaped.
std::string in_quotes(std::string_view text);
std::string shown(const Json& value);
std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 64]"

}  // namespace retort::engines::kserve
