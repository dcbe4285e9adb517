#include "launch/ranks/rank_command.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "launch/ranks/serving_roles.h"
#include "launch/supervision/child_context.h"
#include "launch/supervision/driving_lock.h"
#include "launch/supervision/launcher_link.h"
#include "launch/supervision/run_folder.h"
#include "launch/supervision/signal_catcher.h"
#include "launch/yaml/recipe_file.h"
#include "parallel/vote.h"
#include "recipes/external_roles.h"
#include "recipes/run/student.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace {

recipes::RankContext make_context(const RoleCommand& command, const ChildContext& child) {
  if (child.run != command.run || child.role != command.role || child.rank != command.rank)
    throw Error(ErrorCode::kInvalidArgument,
                "the command line and what the launcher passed name different roles");
  recipes::RankContext context;
  context.run_folder = command.run_folder;
  context.recipe = load_recipe(context.run_folder / kResolvedRecipe, {}, {.cuda = true});
  context.run = child.run;
  context.role = child.role;
  context.rank = child.rank;
  context.incarnation = child.incarnation;
  context.restart = child.restart;
  context.store_host = child.store_host;
  context.store_port = child.store_port;
  context.secret = child.secret;
  context.connect_store = rpc::store_connector({.name = context.name(),
                                                .run = context.run,
                                                .secret = context.secret,
                                                .encryption = context.recipe.rpc.encryption});
  context.resume = child.resume;
  context.threads = child.threads;
  return context;
}

void log_environment(const recipes::RoleOptions& role) {
  std::string settings;
  for (const auto& [name, value] : role.env)
    settings += " " + name + "=" + value;
  if (!settings.empty()) {
    RETORT_LOG(kInfo) << "the role's environment:" << settings;
  }
}

// LibTorch's switches; those of cuBLAS and NCCL are variables, which the launcher sets.
void use_deterministic_algorithms() {
  at::globalContext().setDeterministicAlgorithms(/*enabled=*/true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  RETORT_LOG(kInfo) << "deterministic algorithms only: an operator that has none is an error";
}

void run_serving_role(const recipes::RankContext& context) {
  const bool generates = context.recipe.is_generator(context.role);
  if (!context.role_options().external)
    return generates ? run_generator_role(context) : run_teacher_role(context);
  if (recipes::is_asked_in_words(context.recipe, context.role))
    return run_engine_judge_role(context);
  const auto scoring = recipes::reward_roles(context.recipe);
  if (std::find(scoring.begin(), scoring.end(), context.role) != scoring.end())
    return run_engine_reward_role(context);
  generates ? run_engine_generator_role(context) : run_engine_teacher_role(context);
}

// It was asked to end and has nothing to save: it ends by the signal that asks for that, so that
// nobody takes its end for a checkpoint.
[[noreturn]] void end_as_asked(const Error& why) {
  RETORT_LOG(kInfo) << why.what();
  std::signal(SIGTERM, SIG_DFL);
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  ::raise(SIGTERM);
  std::abort();
}

}  // namespace

int run_role(const RoleCommand& command) {
  const ChildContext child = read_child_context();
  set_log_identity(process_name(command.role, command.rank));
  // Never destroyed: a signal that comes after the work is done must not turn a good exit into a
  // death by signal.
  const SignalCatcher& signals = *new SignalCatcher({SIGTERM, SIGINT});

  // What ties this process to its launcher. If that is lost a serving process goes on while a
  // driving one saves.
  const bool driving = command.role == recipes::Recipe::kDrivingRole;
  const Duration stop_timeout = child.stop_timeout;
  std::atomic<bool> stop_asked{false};
  std::function<bool()> is_needed;
  if (!driving) is_needed = [&command] { return anyone_drives(command.run_folder); };
  std::optional<DrivingLock> lock;
  LauncherLink launcher({.context = child,
                         .on_lost = [&stop_asked] { stop_asked = true; },
                         .on_stop = [&stop_asked] { stop_asked = true; },
                         .is_needed = is_needed,
                         .need_limit = stop_timeout});

  try {
    recipes::RankContext context = make_context(command, child);
    const recipes::RoleOptions& role = context.recipe.roles.at(context.role);
    log_environment(role);
    // Before LibTorch is used, which looks once whether there is CUDA.
    if (role.world.device == parallel::Device::kCuda)
      context.device_module = parallel::DeviceModule::load();

    at::set_num_threads(static_cast<int>(context.threads));
    if (context.recipe.deterministic) use_deterministic_algorithms();

    context.stop_requested = [&] { return stop_asked.load() || signals.any(); };
    context.report = [&](const std::string& state, int64_t step, const std::string& message) {
      // From its first step on the student has something to save.
      if (driving && state == "training" && !lock) {
        lock.emplace(command.run_folder);
        launcher.set_grace(stop_timeout);
      }
      launcher.report({.state = state, .step = step, .message = message, .error = ""});
    };

    if (driving)
      recipes::run_student(context);
    else
      run_serving_role(context);
    return 0;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kCancelled && (stop_asked || signals.any())) end_as_asked(e);
    RETORT_LOG(kError) << e.what() << " at " << e.origin();
    launcher.report({.state = "failed",
                     .step = 0,
                     .message = e.what(),
                     .error = std::string(to_string(e.code())),
                     .of_another_rank = parallel::failed_rank(e, command.role).has_value()});
    return exit_code_for(e.code());
  } catch (const std::exception& e) {
    const std::string text = e.what();
    RETORT_LOG(kError) << text;
    launcher.report({.state = "failed",
                     .step = 0,
                     .message = Error(ErrorCode::kRemote, text.substr(0, text.find('\n'))).what(),
                     .error = std::string(to_string(ErrorCode::kRemote))});
    return 1;
  }
}

}  // namespace retort::launch
