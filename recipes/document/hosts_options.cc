#include "recipes/document/hosts_options.h"

#include "base/error.h"

namespace retort::recipes {
namespace {

// A word that ssh would take for an option is no name: it would change what the command does.
void check_word(const char* key, const std::string& word) {
  if (word.empty() || word.front() == '-' || word.find_first_of(" \t\n") != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(key) + " is '" + word + "'; expected one word that begins with no -");
}

}  // namespace

void HostOptions::validate() const {
  check_word("host", host);
  if (slots < 1) throw Error(ErrorCode::kInvalidArgument, "slots must be at least 1");
  if (address) check_word("address", *address);
}

void SshOptions::validate() const {
  if (user) check_word("user", *user);
  if (port < 1 || port > 65535)
    throw Error(ErrorCode::kInvalidArgument, "port must be between 1 and 65535");
  if (identity_file && identity_file->empty())
    throw Error(ErrorCode::kInvalidArgument, "identity_file is empty; leave it out, or name a key");
  if (program.empty())
    throw Error(ErrorCode::kInvalidArgument, "program is empty; expected retort's path there");
}

}  // namespace retort::recipes
