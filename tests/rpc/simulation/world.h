// What all processes of a simulation have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/rpc/simulation/network.h"
#include "tests/rpc/simulation/scheduler.h"

namespace retort::rpc::simulation {

class World {
 public:
  World(uint64_t seed, Network::Options options) : scheduler(seed), network(scheduler, options) {}

  // The first failure ends the run.
  void fail(const std::string& what);
  const std::string& failure() const { return failure_; }
  // For a simulated thread. False: `what` failed, because `limit` was over, or something before it.
  bool wait_until(const std::function<bool()>& done, milliseconds limit, const std::string& what);
  // A handler begins; a failure if this call had one before. In an ordered run large
  // calls of one caller must begin in the order of their numbers.
  void handler_begins(const std::string& caller, uint64_t call, bool large);

  // Bytes, at most 1 MiB of them. From count() on, which may come when they are gone, they are in
  // use by `key` for as long as the tensor lives.
  struct Use {
    uint64_t bytes = 0, tensors = 0;
  };
  struct Memory {
    at::Tensor tensor;
    std::function<void()> count;
  };
  Memory memory(const std::string& key, int64_t bytes);
  Use use(const std::string& key) { return *uses_[key]; }

  Scheduler scheduler;
  Network network;
  std::map<std::string, std::string> directory;  // name -> address
  bool ordered = false;

 private:
  struct Uses : std::shared_ptr<Use> {
    Uses() : std::shared_ptr<Use>(std::make_shared<Use>()) {}
  };
  std::string failure_;
  std::map<uint64_t, int> runs_;                // of handlers, by call
  std::map<std::string, uint64_t> last_large_;  // by caller
  std::map<std::string, Uses> uses_;
};

}  // namespace retort::rpc::simulation
