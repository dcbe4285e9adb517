// What a role's process does, from its start to its exit code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "launch/recipe.h"
#include "parallel/device_module.h"
#include "parallel/world.h"
#include "recipes/train_loop.h"

namespace retort::launch {

// Everything a role process was told by its launcher.
struct RoleContext {
  Recipe recipe;
  std::filesystem::path run_folder;
  std::string run;  // name of the run
  std::string role;
  int64_t rank = 0;
  int64_t incarnation = 0;  // counts restarts of the run; part of every store key
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  std::string secret;
  bool resume = false;
  int64_t threads = 1;
  std::shared_ptr<parallel::DeviceModule> device_module;  // of a role with world.device: cuda
  std::function<bool()> stop_requested;
  // state: loading | waiting | training | serving | done
  std::function<void(const std::string& state, int64_t step, const std::string& message)> report;

  std::string name() const { return role + "/" + std::to_string(rank); }
  std::string store_prefix(const std::string& of_role) const {
    return run + "/" + of_role + "/" + std::to_string(incarnation) + "/";
  }
};

// A serving role (teacher): load, verify, publish the address, answer until told to stop.
void run_teacher_role(const RoleContext& context);
// A serving role that generates: the same, and takes over the student's weights.
void run_generator_role(const RoleContext& context);
// The driving role: world, model, data, teachers, training loop. Returns how the loop ended.
recipes::TrainLoopResult run_student_role(const RoleContext& context);

}  // namespace retort::launch
