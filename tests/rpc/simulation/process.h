// A process of a simulation: an agent on a simulated host, the thread that runs its handlers, and
// the links that it keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "rpc/agent.h"
#include "rpc/peer_links.h"
#include "tests/rpc/simulation/network.h"
#include "tests/rpc/simulation/world.h"

namespace retort::rpc::simulation {

struct WorkRequest {
  uint64_t id = 0;  // of all calls of a simulation
  int64_t takes_ms = 0;
  int64_t reply_bytes = 0;
  at::Tensor data;
  template <class A>
  void serialize(A& archive) {
    archive(id, takes_ms, reply_bytes, data);
  }
};
struct WorkReply {
  uint64_t id = 0;
  at::Tensor data;
  template <class A>
  void serialize(A& archive) {
    archive(id, data);
  }
};
inline constexpr Method<WorkRequest, WorkReply> kWork{"simulation.work"};
// Is not answered until the caller cancels it or is lost.
inline constexpr Method<WorkRequest, WorkReply> kHold{"simulation.hold"};

class Process {
 public:
  struct Options {
    std::string name;
    uint64_t restart = 0;
    RpcOptions rpc;
    size_t queue = size_t{1} << 20;  // of handlers
  };
  // On a simulated thread.
  Process(World& world, Options options);
  // stop() has returned.
  ~Process() = default;

  const std::string& name() const { return options_.name; }
  const Options& options() const { return options_; }
  Agent& agent() { return *agent_; }
  PeerLinks& links() { return *links_; }
  Host& host() { return *host_; }
  bool gone() const { return host_->killed(); }

  // As a run ends it, on a simulated thread; again does nothing.
  void stop();

 private:
  struct Held {
    Promise<WorkReply> reply;
    std::shared_ptr<const std::atomic<bool>> cancelled;
  };
  void serve();
  void run_handlers();
  std::string find(const std::string& peer, Deadline deadline);

  World& world_;
  const Options options_;
  const std::shared_ptr<Host> host_;
  const std::shared_ptr<HandlerQueue> queue_;
  std::list<Held> held_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<PeerLinks> links_;
  bool stopping_ = false, handlers_done_ = false, stopped_ = false;
};

}  // namespace retort::rpc::simulation
