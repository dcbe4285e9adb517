// The secret of a run whose processes are not all started by one launcher.
#pragma once

#include <filesystem>
#include <string>

namespace retort::launch {

inline constexpr size_t kFewestSecretCharacters = 16;
// The file in the run's folder that a launcher writes for the steps of a job.
inline constexpr const char* kStepSecret = ".secret";

// What the file holds, without white space at its ends. kInvalidArgument, naming the file, when it
// cannot be read, is readable for others (read_private_file) or holds less than
// kFewestSecretCharacters: what can be guessed keeps nobody out. With `is_own` the file is one that
// Retort has written (read_own_private_file).
std::string read_secret(const std::filesystem::path& file, bool is_own = false);

}  // namespace retort::launch
