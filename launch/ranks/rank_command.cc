#include "launch/ranks/rank_command.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/network_interfaces.h"
#include "launch/document/recipe_file.h"
#include "launch/process/child_context.h"
#include "launch/process/signal_catcher.h"
#include "launch/ranks/joined_rank.h"
#include "launch/ranks/serving_roles.h"
#include "launch/run_folder/driving_lock.h"
#include "launch/run_folder/run_folder.h"
#include "launch/supervision/launcher_link.h"
#include "parallel/nccl_variables.h"
#include "parallel/vote.h"
#include "recipes/run/student/student.h"
#include "recipes/type/registry.h"
#include "rpc/listen_address.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace {

// The run's store is the launcher's, wherever that is by then.
parallel::ConnectStore connect_to_store(const ChildContext& child, LauncherLink& launcher) {
  return rpc::store_connector({.name = process_name(child.role, child.rank),
                               .run = child.run,
                               .secret = child.secret,
                               .encryption = child.encryption,
                               .peer_timeout = child.peer_timeout},
                              [&launcher] {
                                const LauncherAddress at = launcher.where();
                                return rpc::StorePlace{.host = at.host, .port = at.port};
                              });
}

recipes::RankContext make_context(const RoleCommand& command, const ChildContext& child,
                                  const std::string& address, LauncherLink& launcher) {
  if (child.run != command.run || child.role != command.role || child.rank != command.rank)
    throw Error(ErrorCode::kInvalidArgument,
                "the command line and what the launcher passed name different roles");
  recipes::RankContext context;
  context.run_folder = command.run_folder;
  // Whoever started the run has checked it for the hosts that its processes are on.
  const LoadOptions options{
      .cuda = true, .check_inputs = false, .is_launched = false, .env_values = false};
  context.recipe = child.recipe.empty()
                       ? load_recipe(context.run_folder / kResolvedRecipe, {}, options)
                       : parse_recipe(child.recipe, "the run's recipe", options);
  // Whoever started the run has settled this for the address at which its processes meet.
  context.recipe.rpc.encryption = child.encryption;
  context.address = address;
  context.advertise = child.advertise;
  context.run = child.run;
  context.role = child.role;
  context.rank = child.rank;
  context.incarnation = child.incarnation;
  context.restart = child.restart;
  context.life = child.life;
  context.store_host = child.store_host;
  context.store_port = child.store_port;
  context.secret = child.secret;
  context.connect_store = connect_to_store(child, launcher);
  context.resume = child.resume;
  context.writes_cache = child.writes_cache;
  context.threads = child.threads;
  context.ranks_on_host = child.ranks_on_host;
  return context;
}

// Only names are logged, because a value may be a key and a log is read by many.
void log_environment(const recipes::RoleOptions& role) {
  std::string names;
  for (const auto& [name, value] : role.env)
    names += (names.empty() ? " " : ", ") + name;
  if (!names.empty()) {
    RETORT_LOG(kInfo) << "the role's environment has" << names;
  }
}

// These are LibTorch's switches; those of cuBLAS and NCCL are variables, which the launcher sets.
void use_deterministic_algorithms() {
  at::globalContext().setDeterministicAlgorithms(/*enabled=*/true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  RETORT_LOG(kInfo) << "deterministic algorithms only: an operator that has none is an error";
}

// It was asked to end and has nothing to save: it ends by the signal that asks for that, so that
// nobody takes its end for a checkpoint.
[[noreturn]] void end_as_asked() {
  std::signal(SIGTERM, SIG_DFL);
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  ::raise(SIGTERM);
  std::abort();
}

// NCCL picks an interface of its own unless it is told; the user's choice stays.
void name_interface_for_nccl(const std::string& address) {
  const std::string interface = choose_address(address, interface_addresses()).interface;
  for (const auto& [name, value] : parallel::nccl_variables({.interface = interface}))
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
}

// A rank at work: what it was told, and what it reports.
class Rank {
 public:
  Rank(const RoleCommand& command, const ChildContext& child, std::string address,
       SignalCatcher& signals)
      : command_(command), child_(child), address_(std::move(address)), signals_(signals) {}

  // The exit code, or nullopt if it was asked to end and has nothing to save.
  std::optional<int> run(LauncherLink& launcher);
  void ask_to_stop() { stop_asked_ = true; }
  bool is_driving() const { return command_.role == recipes::Recipe::kDrivingRole; }
  // What it reported last of its work.
  const std::string& state() const { return state_; }

 private:
  // A signal to a serving rank that joined is one to its run, which still needs it to save.
  bool is_stopping() const {
    return stop_asked_ || (signals_.any() && (is_driving() || !child_.joined));
  }
  void work(LauncherLink& launcher);
  int failed(LauncherLink& launcher, const ProcessStatus& status, int exit_code);

  const RoleCommand& command_;
  const ChildContext& child_;
  const std::string address_;
  SignalCatcher& signals_;
  std::atomic<bool> stop_asked_{false};
  std::optional<DrivingLock> lock_;
  std::string state_;
};

void Rank::work(LauncherLink& launcher) {
  recipes::RankContext context = make_context(command_, child_, address_, launcher);
  const recipes::RoleOptions& role = context.recipe.roles.at(context.role);
  log_environment(role);
  // The module is loaded before LibTorch is used, which looks only once whether there is CUDA.
  if (role.world.device == parallel::Device::kCuda)
    context.device_module = parallel::DeviceModule::load();

  at::set_num_threads(static_cast<int>(context.threads));
  if (context.recipe.deterministic) use_deterministic_algorithms();

  context.stop_requested = [this] { return is_stopping(); };
  const auto say = [&](const std::string& state, int64_t step, const std::string& message,
                       bool warning) {
    // From its first step on the student has something to save.
    if (is_driving() && state == "training" && !lock_) {
      lock_.emplace(command_.run_folder);
      launcher.set_grace(child_.stop_timeout);
    }
    state_ = state;
    launcher.report(
        {.state = state, .step = step, .message = message, .error = "", .warning = warning});
  };
  context.report = [say](const std::string& state, int64_t step, const std::string& message) {
    say(state, step, message, /*warning=*/false);
  };
  context.warn = [say](const std::string& state, int64_t step, const std::string& message) {
    say(state, step, message, /*warning=*/true);
  };

  if (!is_driving())
    serve_until_stopped(context, make_serving_rank(context));
  else if (context.writes_cache)
    recipes::recipe_type(context.recipe).write_cache(context);
  else
    recipes::run_student(context);
}

int Rank::failed(LauncherLink& launcher, const ProcessStatus& status, int exit_code) {
  state_ = status.state;
  launcher.report(status);
  return exit_code;
}

std::optional<int> Rank::run(LauncherLink& launcher) {
  try {
    work(launcher);
    return 0;
  } catch (const Error& e) {
    // A process that was asked to stop ends well, however the work was left.
    if (e.code() == ErrorCode::kCancelled && is_stopping()) {
      RETORT_LOG(kInfo) << e.what();
      return std::nullopt;
    }

    // An error of ours keeps its code; another rank's names that rank, which is the cause.
    RETORT_LOG(kError) << e.what() << " at " << e.origin();
    return failed(launcher,
                  {.state = "failed",
                   .step = 0,
                   .message = e.what(),
                   .error = std::string(to_string(e.code())),
                   .of_another_rank = parallel::failed_rank(e, command_.role).has_value()},
                  exit_code_for(e.code()));
  } catch (const std::exception& e) {
    // LibTorch's errors have a stack of calls behind their first line, which is for the log alone.
    const std::string text = e.what();
    RETORT_LOG(kError) << text;
    return failed(launcher,
                  {.state = "failed",
                   .step = 0,
                   .message = Error(ErrorCode::kRemote, text.substr(0, text.find('\n'))).what(),
                   .error = std::string(to_string(ErrorCode::kRemote))},
                  1);
  }
}

}  // namespace

int run_role(const RoleCommand& command) {
  const ChildContext child = read_child_context();
  const std::string address = rpc::listen_address(child.bind, child.store_host, child.store_port);
  if (child.cuda) name_interface_for_nccl(address);
  set_log_identity(process_name(command.role, command.rank));

  // Never destroyed: a signal that comes after the work is done must not turn a good exit into a
  // death by signal.
  SignalCatcher& signals = *new SignalCatcher({SIGTERM, SIGINT});
  release_signals({SIGHUP});

  // The link ties this process to its launcher. If that is lost a serving process goes on while a
  // driving one saves.
  Rank rank(command, child, address, signals);
  std::function<bool()> is_needed;
  const auto is_training = [&command] { return anyone_drives(command.run_folder); };
  if (!rank.is_driving()) is_needed = is_training;
  std::optional<LauncherLink::Options::Next> next;
  if (child.outlives_launcher)
    next = {.is_training = is_training,
            .find = [&command] { return read_launcher_address(command.run_folder); }};

  // The link ends before the process does, so that what it reports is on its way.
  {
    LauncherLink launcher({.context = child,
                           .on_lost = [&rank] { rank.ask_to_stop(); },
                           .on_stop = [&rank] { rank.ask_to_stop(); },
                           .is_needed = is_needed,
                           .need_limit = child.stop_timeout,
                           .next = next});
    // A rank that joined by itself has this link alone to tell the launcher how it ends.
    if (child.joined)
      return run_joined_rank({.driving = rank.is_driving(),
                              .launcher = launcher,
                              .signals = signals,
                              .work = [&] { return rank.run(launcher); },
                              .state = [&] { return rank.state(); }});

    const std::optional<int> code = rank.run(launcher);
    // Nobody else tells a launcher that did not start this process how it ends.
    if (launcher.is_another())
      launcher.report({.state = "ended", .ended = code.value_or(-SIGTERM)});
    if (code) return *code;
  }
  end_as_asked();
}

}  // namespace retort::launch
