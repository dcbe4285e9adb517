// Files of rows that are not JSONL: a JSON array, which is turned into it, and others, which are
// refused by what they are. Private to data.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace retort::data::detail {

// Told by the first character behind white space and a byte-order mark.
bool is_json_array(std::string_view text);

// Hands `write` each object of the array on a line of its own. Where the text has a line or more
// for each object (json.dump with an indent), it is the number of the line on which the object
// begins, so that messages name the lines of the text; else the object's number. What is between
// the braces stays as it is, but that line breaks become spaces. It is checked no further than the
// array's shape asks for.
// Memory: about 1 MiB, whatever the size of the text, which is read from its beginning to its end.
// Errors: kInvalidArgument naming `path` and the line for an item that is no object, a text that
// ends too early, and what stands behind the array.
void array_to_lines(const std::filesystem::path& path, std::string_view text,
                    const std::function<void(std::string_view)>& write);

// kInvalidArgument saying what `text`, that of `path`, is instead of JSONL, and what makes JSONL of
// it: a file of another kind (base/file_kind.h), JSON over many lines, CSV.
void check_json_lines(const std::filesystem::path& path, std::string_view text);

}  // namespace retort::data::detail
