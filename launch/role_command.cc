#include "launch/role_command.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "launch/child_context.h"
#include "launch/life_pipe.h"
#include "launch/recipe.h"
#include "launch/role_process.h"
#include "launch/run_folder.h"
#include "launch/signal_catcher.h"
#include "launch/status_pipe.h"

namespace retort::launch {
namespace {

RoleContext make_context(const RoleCommand& command, const ChildContext& child) {
  if (child.run != command.run || child.role != command.role || child.rank != command.rank)
    throw Error(ErrorCode::kInvalidArgument,
                "the command line and the launcher's pipe name different roles");
  RoleContext context;
  context.run_folder = command.run_folder;
  context.recipe = load_recipe(context.run_folder / kResolvedRecipe, {}, {.cuda = true});
  context.run = child.run;
  context.role = child.role;
  context.rank = child.rank;
  context.incarnation = child.incarnation;
  context.store_host = child.store_host;
  context.store_port = child.store_port;
  context.secret = child.secret;
  context.resume = child.resume;
  context.threads = child.threads;
  return context;
}

void log_environment(const RoleOptions& role) {
  std::string settings;
  for (const auto& [name, value] : role.env)
    settings += " " + name + "=" + value;
  if (!settings.empty()) {
    RETORT_LOG(kInfo) << "the role's environment:" << settings;
  }
}

}  // namespace

int run_role(const RoleCommand& command) {
  const ChildChannels channels = open_child_channels();
  set_log_identity(command.role + "/" + std::to_string(command.rank));
  // Never destroyed: a signal that comes after the work is done must not turn a good exit into a
  // death by signal.
  const SignalCatcher& signals = *new SignalCatcher({SIGTERM, SIGINT});
  std::atomic<bool> launcher_gone{false};
  LifePipe life(channels.life_fd, [&] { launcher_gone = true; });
  StatusPipe status(channels.status_fd);
  try {
    RoleContext context = make_context(command, channels.context);
    const RoleOptions& role = context.recipe.roles.at(context.role);
    log_environment(role);
    // Before LibTorch is used, which looks once whether there is CUDA.
    if (role.world.device == parallel::Device::kCuda)
      context.device_module = parallel::DeviceModule::load();
    at::set_num_threads(static_cast<int>(context.threads));
    context.stop_requested = [&] { return launcher_gone.load() || signals.any(); };
    context.report = [&](const std::string& state, int64_t step, const std::string& message) {
      status.report({.state = state, .step = step, .message = message, .error = ""});
    };
    if (context.role == Recipe::kDrivingRole)
      run_student_role(context);
    else if (context.recipe.is_generator(context.role))
      run_generator_role(context);
    else
      run_teacher_role(context);
    return 0;
  } catch (const Error& e) {
    RETORT_LOG(kError) << e.what() << " at " << e.origin();
    status.report({.state = "failed",
                   .step = 0,
                   .message = e.what(),
                   .error = std::string(to_string(e.code()))});
    return exit_code_for(e.code());
  } catch (const std::exception& e) {
    const std::string text = e.what();
    RETORT_LOG(kError) << text;
    status.report({.state = "failed",
                   .step = 0,
                   .message = text.substr(0, text.find('\n')),
                   .error = "remote"});
    return 1;
  }
}

}  // namespace retort::launch
