// The JSON objects that a server is sent, and that it answers with.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace retort::engines {

// The text of a request's body. `field`: that of the user's texts in it, for the kInvalidArgument
// of bytes that are not UTF-8.
std::string body_text(const nlohmann::json& body, const std::string& field);

// kCorrupt, naming the door, for text that is none, or is nested too deep to be read.
nlohmann::json json_object(const std::string& text, const std::string& door);
// Null for such a text.
nlohmann::json json_object_or_null(const std::string& text);

// The beginning of an answer, in quotes, for errors.
std::string json_excerpt(const std::string& text);

}  // namespace retort::engines
