// The world of one role: its rendezvous, its grid of ranks and its groups. No process group ever
// spans two roles, and one process may hold several worlds.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "parallel/device_module.h"
#include "parallel/group.h"
#include "parallel/layout.h"
#include "parallel/role_devices.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace retort::parallel {

// Connects to the run's store. Empty: c10d's TCPStore, which proves nothing and is for tests.
using ConnectStore = std::function<c10::intrusive_ptr<c10d::Store>(
    const std::string& host, uint16_t port, std::chrono::milliseconds timeout)>;

// A client of the run's key-value store, which the launcher owns, under a key prefix.
//
// Errors: kTimeout and kPeerLost naming the operation, the key and the store; what `connect`
//   throws.
// Threads: one client for each thread that waits, because a blocked wait of a TCPStore locks it.
class StoreClient {
 public:
  StoreClient(const std::string& host, uint16_t port, std::string prefix,
              std::chrono::milliseconds timeout, const ConnectStore& connect = {});
  void set(const std::string& key, const std::string& value);
  // Waits until the key exists; kTimeout naming the key.
  std::string get(const std::string& key, Deadline deadline);
  // The same for many at once: at most three requests, however many there are.
  std::vector<std::string> get_all(const std::vector<std::string>& keys, Deadline deadline);
  // Waits without the values: one request.
  void wait_all(const std::vector<std::string>& keys, Deadline deadline);
  bool contains(const std::string& key);
  bool contains_all(const std::vector<std::string>& keys);
  int64_t add(const std::string& key, int64_t amount);
  struct Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

// A c10d TCPStore's server, for tests and benchmarks. Port 0: any that is free.
class StoreServer {
 public:
  explicit StoreServer(const std::string& host, uint16_t port = 0);
  ~StoreServer();
  uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// This rank's place in its role, and the groups of ranks that it is in. A group of one rank is
// free.
//
// Collectives: the constructor, over all ranks of the role: it waits for them. Where collectives
//   run on devices the destructor waits for the other ranks too, unless an exception is on its way
//   or a collective has failed.
// Connections: groups of the same ranks (all, dp and dp_pp of a role that is data-parallel only)
//   share them (parallel/detail/mesh.h).
// Errors: of the constructor, kInvalidArgument and kUnavailable for the options; kTimeout naming
//   the ranks that did not arrive; kTimeout or kCollective when the members of a group
//   cannot connect, which on devices has the limit of a collective; StoreClient's.
// Threads: compute.
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
    ConnectStore connect_store;

    // What follows is for layout.device kCuda, which needs the module (kUnavailable without it).
    std::shared_ptr<DeviceModule> device_module;
    // The roles that share out the devices of this rank's host, this one among them; empty: this
    // one alone.
    std::vector<DeviceUser> device_users = {};
    // Several ranks of the role may have one device: slow, for tests and demonstrations.
    bool share_devices = false;
    // They are connected on it, for tests of what devices do together. NCCL refuses two ranks of
    // one host on one device, so each process has set NCCL_HOSTID to a name of its own before;
    // they speak through sockets, and their kernels take turns. If false, collectives of ranks
    // that share a device go through host memory.
    bool connect_sharers = false;
    // The ranks that share out the devices of a host; none: the ranks of this world. For a world
    // that is one replica of a role: this rank's place among all ranks of the role, and their keys
    // in the store.
    struct DeviceSharers {
      int64_t rank = 0;
      int64_t size = 1;
      std::string store_prefix;
    };
    std::optional<DeviceSharers> device_sharers;
    // Which groups are connected for collectives on devices: those that tensors of devices go over
    // (tp, dp, embedding), or all, for tests. The others' collectives of such tensors go through
    // host memory: a connection takes memory of the device, and time at the start.
    enum class DeviceGroups { kOfTensors, kAll };
    DeviceGroups device_groups = DeviceGroups::kOfTensors;
    bool high_priority_streams = true;  // collectives' kernels go before those of the computation

    // The address of this host, in numbers, at which the other ranks reach this one. Empty: that of
    // the interface that leads to the store.
    std::string address;
  };

  explicit World(Options options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Options& options() const;
  int64_t rank() const;
  int64_t size() const;
  Coordinate coordinate() const;
  // True if this rank holds the last pipeline stage, where the loss is formed.
  bool forms_loss() const { return coordinate().pp == options().layout.pp - 1; }
  // True if this rank asks other roles on behalf of all that form the loss of its replica.
  bool asks_for_loss() const { return forms_loss() && coordinate().tp == 0; }
  // True if this rank is the first of its replica, which speaks for it to people and generators.
  bool leads_replica() const { return coordinate().tp == 0 && coordinate().pp == 0; }
  // Where this rank's tensors belong: the CPU, or the device that the ranks of this host agreed on,
  // which is then the current one.
  at::Device device() const;
  // The most bytes that tensors of this process took on that device at one time; 0 on the CPU,
  // where nobody counts.
  int64_t peak_device_bytes() const;

  // The groups that this rank is in, their ranks in increasing order. A group holds the ranks that
  // have all coordinates but the named ones in common with this rank: tp() the ranks with its dp
  // and pp coordinates.
  Group& all();  // every rank of the role
  Group& tp();
  Group& dp();
  Group& pp();
  Group& mp();     // tp and pp: one replica of the model
  Group& dp_pp();  // dp and pp: the ranks with the same tp coordinate
  // The first and the last stage of this rank's pipeline. In the stages between, and with pp 1,
  // this rank alone.
  Group& embedding();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::parallel
