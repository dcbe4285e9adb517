// A role's `environment:` block: the program or the service that answers a model's turns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

namespace retort::environments {

struct EnvironmentOptions {
  std::vector<std::string> command;
  std::string url;
  std::string api_key_env, api_key_file;
  std::string ca_file;
  int64_t episodes = 32;
  Duration start_timeout{300'000};

  template <class V>
  void fields(V& visit) {
    visit("command", command,
          "program and arguments of an environment that each rank of the role starts and speaks "
          "with over its stdin and stdout");
    visit("url", url, "instead: where one that is there already listens; empty: the command");
    visit("api_key_env", api_key_env,
          "the environment variable that holds the service's key; empty: none");
    visit("api_key_file", api_key_file, "a file that holds it; empty: none");
    visit("ca_file", ca_file, "PEM file of the authorities that are trusted; empty: the system's");
    visit("episodes", episodes, "episodes that it has at a time, for each rank");
    visit("start_timeout", start_timeout, "for its first line, or for the service to answer");
  }
  // kInvalidArgument naming the field: ranges, fields without effect.
  void validate() const;
};

// The service's key, from wherever the options say it is; empty: none. kInvalidArgument naming the
// variable that is not set, or the file, which others may not read (read_private_file); the key
// itself is in no message.
std::string read_api_key(const EnvironmentOptions& options);

}  // namespace retort::environments
