// `launch.rendezvous`: where the processes of a run meet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"

namespace retort::recipes {

// The processes of a run meet at this address: it is the run's store.
struct RendezvousOptions {
  std::optional<std::string> address;
  int64_t port = 0;

  template <class V>
  void fields(V& visit) {
    visit("address", address,
          "host that every process of the run reaches the store by; null: with retort launch "
          "loopback, or where `hosts` reach it; with retort join what the environment says");
    visit("port", port, "of the store; 0: any that is free, with retort launch");
  }
  void validate() const;
};

}  // namespace retort::recipes
