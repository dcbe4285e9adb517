// The hosts of a run and how they are reached: `launch.hosts` and `launch.ssh`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"

namespace retort::recipes {

// One entry of `launch.hosts`.
struct HostOptions {
  std::string host;
  int64_t slots = 8;
  std::optional<std::string> address;

  template <class V>
  void fields(V& visit) {
    visit("host", host, "its name, as ssh knows it");
    visit("slots", slots, "processes that are placed on it at most");
    visit("address", address,
          "its address for the other hosts, which its processes listen at; null: the one that ssh "
          "arrived at");
  }
  void validate() const;
};

struct SshOptions {
  std::optional<std::string> user;
  int64_t port = 22;
  std::optional<std::string> identity_file;
  std::string program = "retort";

  template <class V>
  void fields(V& visit) {
    visit("user", user, "null: as ssh's own configuration says");
    visit("port", port, "of sshd");
    visit("identity_file", identity_file, "the private key; null: ssh's own choice");
    visit("program", program, "retort on the hosts: a path there, or a name that its shell finds");
  }
  void validate() const;
};

}  // namespace retort::recipes
