// Several observers of one supervisor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch/supervision/supervisor.h"

namespace retort::launch {

// Tells each of them, in their order, what a supervisor says. They must outlive it.
class Observers final : public SupervisorObserver {
 public:
  explicit Observers(std::vector<SupervisorObserver*> all) : all_(std::move(all)) {}
  void add(SupervisorObserver* one) { all_.push_back(one); }

  void on_start(const ProcessSpec& spec, pid_t pid) override {
    for (auto* one : all_)
      one->on_start(spec, pid);
  }
  void on_status(const ProcessSpec& spec, const ProcessStatus& status) override {
    for (auto* one : all_)
      one->on_status(spec, status);
  }
  void on_end(const ProcessSpec& spec, const ProcessEnd& end) override {
    for (auto* one : all_)
      one->on_end(spec, end);
  }
  void on_exit(const ProcessSpec& spec, const std::string& what) override {
    for (auto* one : all_)
      one->on_exit(spec, what);
  }
  void on_phase(const std::string& message) override {
    for (auto* one : all_)
      one->on_phase(message);
  }
  void on_stopping() override {
    for (auto* one : all_)
      one->on_stopping();
  }
  void on_tick() override {
    for (auto* one : all_)
      one->on_tick();
  }

 private:
  std::vector<SupervisorObserver*> all_;
};

}  // namespace retort::launch
