// The world of one role: its rendezvous, its grid of ranks and its groups. No process group ever
// spans two roles, and one process may hold several worlds.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "parallel/device_module.h"
#include "parallel/group.h"
#include "parallel/layout.h"

namespace retort::parallel {

// A client of the run's key-value store (a c10d TCPStore that the launcher owns), under a key
// prefix. Threads: one client per thread that waits (a blocked wait locks its client).
class StoreClient {
 public:
  StoreClient(const std::string& host, uint16_t port, std::string prefix,
              std::chrono::milliseconds timeout);
  void set(const std::string& key, const std::string& value);
  // Waits until the key exists; kTimeout naming the key.
  std::string get(const std::string& key, Deadline deadline);
  bool contains(const std::string& key);
  int64_t add(const std::string& key, int64_t amount);
  struct Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

// The store's server; the launcher owns it (port 0: ephemeral).
class StoreServer {
 public:
  explicit StoreServer(const std::string& host, uint16_t port = 0);
  ~StoreServer();
  uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class World {
 public:
  struct Options {
    std::string role;  // "student"
    Layout layout;
    int64_t rank = 0;
    std::string store_host = "127.0.0.1";
    uint16_t store_port = 0;                     // unused when the world has one rank
    std::string store_prefix;                    // "<run>/<role>/<incarnation>/"
    std::chrono::milliseconds timeout{120'000};  // of every collective and of the rendezvous

    // With layout.device kCuda. The module: needed, or kUnavailable.
    std::shared_ptr<DeviceModule> device_module;
    // several ranks may have one device: slow, for tests and demonstrations
    bool share_devices = false;
    // false: ranks choose their devices only; collectives go through host memory
    bool device_groups = true;
    bool high_priority_streams = true;  // collectives' kernels go before those of the computation
  };

  // Collective over all ranks of the role: creates every group on every rank in one fixed order.
  explicit World(Options options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Options& options() const;
  int64_t rank() const;
  int64_t size() const;
  Coordinate coordinate() const;
  // Where this rank's tensors belong: the CPU, or the device that the ranks of this host agreed on;
  // it is the current one.
  at::Device device() const;
  // The groups that this rank is in; a group of one rank is free. In rank = tp + TP * (dp + DP *
  // pp) each holds the ranks that differ in the named coordinates only (SYSTEMS B041-B045), in
  // increasing order.
  Group& all();  // every rank of the role
  Group& tp();
  Group& dp();
  Group& pp();
  Group& mp();     // tp and pp: one replica of the model
  Group& dp_pp();  // dp and pp: the same tp coordinate
  // first and last stage of this rank's pipeline; this rank alone in the stages between, and with
  // pp 1
  Group& embedding();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
