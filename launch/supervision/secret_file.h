// The secret of a run whose processes are not all started by one launcher.
#pragma once

#include <filesystem>
#include <string>

namespace retort::launch {

inline constexpr size_t kFewestSecretCharacters = 16;

// What the file holds, without white space at its ends. kInvalidArgument, naming the file, when it
// cannot be read, is readable for others (read_private_file) or holds less than
// kFewestSecretCharacters: what can be guessed keeps nobody out.
std::string read_secret(const std::filesystem::path& file);

}  // namespace retort::launch
