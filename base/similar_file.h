// Names of files that are not there: what may have been meant.
#pragma once

#include <filesystem>
#include <string>

namespace retort {

// The path of what stands beside `path`, in the same folder, under the nearest name; "" if the
// folder is not there or no name is near (nearest_name in base/options.h), or `path` itself is
// there.
std::string similar_file(const std::filesystem::path& path);

// True if `text` may be a repository of the Hugging Face Hub, "org/name": two names of letters,
// digits, '-', '_' and '.' and nothing else.
bool is_hub_name(const std::string& text);

// `path` with a leading "~" or "~/" replaced by the home folder of the environment (HOME). As it is
// if there is none, or for "~name/...".
std::string home_expanded(const std::string& path);

}  // namespace retort
