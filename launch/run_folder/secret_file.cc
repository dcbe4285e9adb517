#include "launch/run_folder/secret_file.h"

#include "base/error.h"
#include "base/private_file.h"

namespace retort::launch {

std::string read_secret(const std::filesystem::path& file, bool is_own) {
  const std::string text = is_own ? read_own_private_file(file) : read_private_file(file);
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  const std::string secret = first == std::string::npos
                                 ? ""
                                 : text.substr(first, text.find_last_not_of(kSpace) - first + 1);

  if (secret.size() < kFewestSecretCharacters)
    throw Error(ErrorCode::kInvalidArgument,
                "the secret in " + file.string() + " has " + std::to_string(secret.size()) +
                    " characters; write at least " + std::to_string(kFewestSecretCharacters) +
                    ", e.g. with: openssl rand -hex 32");
  return secret;
}

}  // namespace retort::launch
