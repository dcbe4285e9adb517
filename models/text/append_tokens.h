// Tokens appended to the files of a tokenizer. Private to models/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace retort::models {

// Writes tokens with the ids first_id, first_id + 1, ... into tokenizer.json of `folder`, and into
// tokenizer_config.json (added_tokens_decoder) and added_tokens.json where these list added tokens.
// They are found before anything else is cut, `special` ones also before the text is normalised.
// kInvalidArgument naming the file for one that is no tokenizer's.
void append_tokens(const std::filesystem::path& folder, const std::vector<std::string>& tokens,
                   int64_t first_id, bool special);

}  // namespace retort::models
