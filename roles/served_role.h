// The interface that every role that answers calls has, so that one function is the life of each.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rpc/agent.h"

namespace retort::roles {

// The progress of a role, for whoever watches the run: "12 tokens drawn, weights 3".
struct Progress {
  int64_t count = 0;
  std::string unit;     // "tokens drawn"
  std::string state{};  // of the role while it serves: ", weights 3"
};

// A role on one rank of one of its replicas.
//
// Use:
//   serve(agent, queue)
//   the leader       lead(queue, stop): work() between jobs, again and again, and stop()
//   the other ranks  follow(queue)
// Errors: those of a call go to its caller; what work() and follow() throw ends the process, which
//   may begin anew.
// Threads: compute (the thread that drains the queue).
class ServedRole {
 public:
  ServedRole() = default;
  virtual ~ServedRole() = default;
  ServedRole(const ServedRole&) = delete;
  ServedRole& operator=(const ServedRole&) = delete;

  // True if this rank takes its replica's requests. A role of one rank leads itself.
  virtual bool leads() const { return true; }
  // True if anybody may call this rank, so that its address is published.
  virtual bool answers() const { return true; }

  // Registers the methods that this rank answers; jobs go to `queue`. The role must outlive the
  // agent's handlers, and the agent the role's work.
  virtual void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) = 0;

  // Called on the leader, between jobs: does a piece of the role's own work. False: there is
  // nothing to do.
  virtual bool work() = 0;
  // For how long jobs that wait are run between two pieces of work; 0: one of them.
  virtual std::chrono::milliseconds call_slice() const { return {}; }
  // Called on the leader, at the end: lets the other ranks end, and whoever still waits hears that
  // nothing comes.
  virtual void stop() = 0;

  // Called on the leader: run_serving_loop with work() until `stop_asked()` is true, then stop().
  // `tick`: of that loop. `slice`: in place of call_slice().
  void lead(rpc::HandlerQueue& queue, const std::function<bool()>& stop_asked,
            const std::function<void(int64_t)>& tick = {},
            std::optional<std::chrono::milliseconds> slice = std::nullopt);
  // Called on the other ranks: does with the leader what it does, until that one stops. `report` is
  // for roles whose other ranks have a progress of their own: after each piece of work.
  virtual void follow(rpc::HandlerQueue& queue, const std::function<void()>& report = {});

  virtual Progress progress() const = 0;
  // The line of the log about all the work when it is over; empty: none.
  virtual std::string summary() const { return {}; }
};

}  // namespace retort::roles
