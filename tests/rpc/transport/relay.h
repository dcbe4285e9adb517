// A man in the middle, who forwards every byte and reads all of them.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "tests/rpc/transport/raw_stream.h"

namespace retort::rpc::transport::testing {

// Listens on a port of its own and forwards each connection to `target`, one after the other.
class Relay {
 public:
  explicit Relay(std::string target);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const std::string& address() const { return address_; }
  // Ends it; returns all that it has seen.
  const std::string& stop();
  std::atomic<int> connections{0};

 private:
  void run();
  void forward(RawStream& near, RawStream& far);

  const std::string target_;
  std::string address_, seen_;
  int listener_ = -1;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace retort::rpc::transport::testing
