// A replica of a role in this process: its own agent, and the thread that runs its handlers.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "roles/serving_loop.h"
#include "rpc/agent.h"

namespace retort::engines {

// Role: serve(agent, queue), work(), stop().
template <class Role>
class ServingReplica {
 public:
  // The role is made of `arguments`.
  template <class... Arguments>
  explicit ServingReplica(const std::string& name, Arguments&&... arguments)
      : role_(std::forward<Arguments>(arguments)...), agent_({.name = name, .secret = "secret"}) {
    role_.serve(agent_, queue_);
    thread_ = std::thread([this] { run(); });
  }
  ~ServingReplica() {
    stop_ = true;
    thread_.join();
    agent_.join();
  }

  std::string address() const { return agent_.address(); }

 private:
  void run() {
    try {
      roles::run_serving_loop(
          *queue_, [this] { return stop_.load(); }, {}, [this] { return role_.work(); });
    } catch (const Error&) {  // as its process would end
    }
    role_.stop();
    queue_->close();
    agent_.close();
  }

  Role role_;
  std::shared_ptr<rpc::HandlerQueue> queue_ = std::make_shared<rpc::HandlerQueue>(roles::kMaxJobs);
  rpc::Agent agent_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace retort::engines
