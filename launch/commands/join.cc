// retort join: one process that becomes one rank of a run, wherever it was started.
#include <netdb.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host_name.h"
#include "base/log.h"
#include "launch/backends/local_backend.h"
#include "launch/backends/run_store.h"
#include "launch/backends/start_processes.h"
#include "launch/commands/command_line.h"
#include "launch/commands/launch.h"
#include "launch/document/recipe_file.h"
#include "launch/join/become_rank.h"
#include "launch/join/carried_variables.h"
#include "launch/join/first_process.h"
#include "launch/join/join_protocol.h"
#include "launch/join/keeper.h"
#include "launch/join/rank_identity.h"
#include "launch/process/signal_catcher.h"
#include "launch/run/open_folder.h"
#include "launch/run/run_once.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/run_folder/secret_file.h"
#include "launch/writers/stderr_writer.h"
#include "launch/yaml/resolved_yaml.h"
#include "parallel/device_module.h"
#include "recipes/rules/models.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

struct JoinCommand {
  std::string recipe;  // "": the run's own, of a process that is not student/0
  std::vector<std::string> overrides;
  JoinArguments place;
  std::string output;  // the run's folder as this host sees it; "": output_dir of the recipe
  bool resume = false, overwrite = false;
  std::string encryption;  // of a process without a recipe: as rpc.encryption; "": auto
};

constexpr const char* kKeeper = "student/0";

// The name of this host with its domain, where the resolver knows one.
std::string full_host_name() {
  const std::string name = host_name();
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return name;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  return list->ai_canonname != nullptr ? list->ai_canonname : name;
}

std::string mode_text(const JoinCommand& command) {
  if (command.resume) return "resume";
  return command.overwrite ? "overwrite" : "fresh";
}

// `check_inputs`: of student/0, whose host has them; the others' may not.
recipes::Recipe load(const JoinCommand& command, bool check_inputs) {
  std::vector<std::string> overrides = command.overrides;
  if (!command.output.empty()) overrides.push_back("output_dir=" + command.output);
  recipes::Recipe recipe = load_recipe(command.recipe, overrides,
                                       {.cuda = parallel::DeviceModule::present(),
                                        .check_inputs = check_inputs,
                                        .is_launched = false,
                                        .env_values = false});
  // Keys that only a launcher could obey are refused and not ignored.
  if (recipe.launch.backend != recipes::Backend::kLocal)
    throw Error(ErrorCode::kInvalidArgument,
                "launch.backend: " + std::string(enum_name(recipe.launch.backend)) +
                    " has no effect with retort join: whoever starts the processes places them; "
                    "remove it, with the keys that belong to it");
  if (recipe.launch.max_restarts > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "launch.max_restarts has no effect with retort join: whoever starts the processes "
                "starts them again, with --resume; remove the key");
  if (recipe.launch.launcher_lost == recipes::LauncherLost::kContinue)
    throw Error(
        ErrorCode::kInvalidArgument,
        "launch.launcher_lost: continue has no effect with retort join: student/0 keeps the "
        "run, and is of it; remove the key");
  return recipe;
}

std::string secret_of(const JoinCommand& command, const JoinPlace& place,
                      const recipes::LaunchOptions& launch) {
  if (!place.secret_file.empty() && launch.secret_file && *launch.secret_file != place.secret_file)
    throw Error(ErrorCode::kInvalidArgument, "RETORT_SECRET_FILE or --secret-file says " +
                                                 place.secret_file + ", launch.secret_file says " +
                                                 *launch.secret_file + "; leave one of them out");
  const std::string file =
      place.secret_file.empty() ? launch.secret_file.value_or("") : place.secret_file;
  if (file.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "nothing says where the run's secret is; set RETORT_SECRET_FILE, --secret-file or "
                "launch.secret_file to a file that all processes of the run have");
  // A launcher has written this file for the steps of its job.
  const bool is_own = !command.output.empty() && file == fs::path(command.output) / kStepSecret;
  return read_secret(file, is_own);
}

// Where the run meets, and what a process proves there; student/0 serves the store at that place.
MeetingAccess access_of(const JoinCommand& command, const JoinPlace& place,
                        const recipes::LaunchOptions& launch, rpc::Encryption encryption,
                        const std::string& own_name) {
  const MeetingPoint point = meeting_point(place, launch.rendezvous);
  return {.host = point.host,
          .port = point.port,
          .secret = secret_of(command, place, launch),
          .encryption = rpc::settled_encryption(encryption, point.host),
          .own_name = own_name};
}

std::string last_line_of(const SupervisorResult& result, const fs::path& run_folder) {
  if (result.cause || result.killed) return "";
  if (!result.stopped_early) return last_line({}, result, run_folder);
  if (result.exit_code == kExitDiverged) return "stopped, because " + result.warning;
  return recipes::latest_checkpoint(run_folder)
             ? "stopped; start all processes again with --resume to go on"
             : "stopped before a checkpoint was complete; start all processes again with --resume";
}

// The store is served before anything is written, so that of two that keep one run the second one
// ends here.
rpc::RendezvousServer serve(const recipes::Recipe& recipe, const MeetingAccess& access,
                            const rpc::RendezvousAccess& served) {
  try {
    return serve_store(recipe, served,
                       rpc::rendezvous_address(recipe.rpc.bind, access.host, access.port),
                       access.port);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    const std::string question =
        rpc::is_port_taken(error) ? "; is there another student/0?" : std::string();
    throw Error(error.code(),
                "student/0 cannot serve the run at " + access.host + ":" +
                    std::to_string(access.port) + ": " + error.message() + question,
                error.origin(), error.context());
  }
}

// The processes of a run that student/0 keeps: its own rank is a child of this process, and the
// others join.
class KeptProcesses final : public StartProcesses {
 public:
  KeptProcesses(Keeper& keeper, const RunFolder& folder)
      : keeper_(keeper),
        folder_(folder),
        children_(fs::read_symlink("/proc/self/exe"), folder.lock_fd()) {}

  std::vector<ProcessSpec> processes(const RunStart& start) override {
    return keeper_.processes(folder_, start);
  }
  Backend& backend() override { return children_; }

 private:
  Keeper& keeper_;
  const RunFolder& folder_;
  LocalBackend children_;
};

int keep_run(const JoinCommand& command, const JoinPlace& place, const recipes::Recipe& recipe) {
  write_stderr_in_background();
  const MeetingAccess access =
      access_of(command, place, recipe.launch, recipe.rpc.encryption, kKeeper);
  set_log_format(recipe.launch.log_format);
  note_engines(recipe);
  if (command.overwrite) refuse_to_overwrite_inputs(recipe);

  // The recipe was read without its inputs, which the host of student/0 alone must have.
  load(command, /*check_inputs=*/true);
  recipes::check_models(recipe);
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});  // never destroyed
  Keeper keeper({.recipe = recipe,
                 .access = access,
                 .mode = mode_text(command),
                 .own_rank = kKeeper,
                 .advertise = place.advertise,
                 .is_stopping = [&signals] { return signals.any(); }});

  const rpc::RendezvousAccess served{.run = new_run_id(run_folder_of(recipe)),
                                     .secret = access.secret,
                                     .encryption = access.encryption,
                                     .meeting = kMeetingRun};
  rpc::RendezvousServer store = serve(recipe, access, served);
  const RunFolder folder =
      open_run_folder(recipe, run_folder_mode(command.resume, command.overwrite));
  KeptProcesses processes(keeper, folder);
  return run_once({.recipe = recipe,
                   .folder = folder,
                   .store = store,
                   .access = served,
                   .resume = command.resume,
                   .processes = processes,
                   .last_line = last_line_of},
                  signals)
      .exit_code;
}

// Refuses to join a run that has another recipe or mode than this process was given.
void check_agreement(const JoinCommand& command, const recipes::Recipe& recipe,
                     const std::string& name, MeetingGuest& guest) {
  const MeetingStart& start = guest.start();
  if (const std::string own = recipe_digest(recipe); own != start.digest)
    guest.refuse(name, Error(ErrorCode::kMismatch,
                             "its recipe, once resolved, has the digest " + own +
                                 ", that of student/0 has " + start.digest +
                                 "; give all processes the same recipe and overrides"));
  if (const std::string own = mode_text(command); own != start.mode)
    guest.refuse(name, Error(ErrorCode::kMismatch, "it was started for a " + own +
                                                       " run, student/0 for a " + start.mode +
                                                       " one; give all processes the same flags"));
}

// The recipe that student/0 hands out has no values of roles.*.env, which may be secrets.
void check_variables(const recipes::RoleOptions& role, const std::string& name,
                     MeetingGuest& guest) {
  std::string missing;
  for (const auto& [variable, value] : role.env)
    if (std::getenv(variable.c_str()) == nullptr)
      missing += (missing.empty() ? "" : ", ") + variable;
  if (!missing.empty())
    guest.refuse(name, Error(ErrorCode::kInvalidArgument,
                             "it has no recipe of its own, and " + missing +
                                 " of its role's env is not set here; export it where this "
                                 "process is started, or give it the recipe"));
}

[[noreturn]] void join_run(const JoinCommand& command, const JoinPlace& place,
                           std::optional<recipes::Recipe> recipe) {
  // Until this process is a rank, which takes its signals itself, it ends by them as any process
  // would.
  release_signals(kEndSignals);
  const std::string called = place.role.value_or("rank") + "/" + std::to_string(place.rank);
  const recipes::LaunchOptions launch = recipe ? recipe->launch : recipes::LaunchOptions{};
  const rpc::Encryption encryption =
      recipe
          ? recipe->rpc.encryption
          : parse_enum<rpc::Encryption>(command.encryption.empty() ? "auto" : command.encryption);
  const MeetingAccess access = access_of(command, place, launch, encryption, called);

  ChildContext context;
  {
    MeetingGuest guest(access, launch.load_timeout);
    const bool has_own = recipe.has_value();
    if (!has_own) {
      recipe = parse_recipe(guest.start().recipe, "the run's recipe",
                            {.cuda = parallel::DeviceModule::present(),
                             .check_inputs = false,
                             .is_launched = false,
                             .env_values = false});
      if (!command.output.empty()) recipe->output_dir = command.output;
    }
    const RankName rank = rank_of_place(place, *recipe);
    const std::string name = process_name(rank.role, rank.rank);
    if (name == kKeeper && !guest.start().has_launcher)
      throw Error(ErrorCode::kInvalidArgument,
                  "this process is student/0, which keeps the run and needs the recipe itself");
    if (has_own)
      check_agreement(command, *recipe, name, guest);
    else
      check_variables(recipe->roles.at(rank.role), name, guest);

    // The others may need as long as this one to be there.
    guest.claim(name);
    context = guest.wait_for_context(name, guest.start().load_timeout + launch.load_timeout);
  }

  context.store_host = access.host;
  context.store_port = access.port;
  context.secret = access.secret;
  context.advertise = place.advertise;
  context.recipe = resolved_yaml(*recipe);
  context.joined = true;
  // A signal that comes from here on waits for the rank, which takes its signals itself.
  hold_signals(kEndSignals);
  become_rank(context, *recipe);
}

// student/0 keeps the run, unless a launcher does: its folder, its store, progress and supervision,
// and a rank of its own as a child; it ends with the exit code of the run. Every other process
// meets it (launch/join), is told what it is, and becomes that rank by exec: this returns only for
// student/0.
//
// Errors: those of find_place() and MeetingGuest; kMismatch for another recipe or mode, with both.
int run_join(const JoinCommand& command) {
  leave_first_process();
  const JoinPlace place = find_place(command.place, own_variables(), full_host_name());
  take_carried_variables();
  std::optional<recipes::Recipe> recipe;
  if (!command.recipe.empty() && !command.encryption.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--encryption has no effect with a recipe, whose rpc.encryption counts");
  if (!command.recipe.empty()) recipe = load(command, /*check_inputs=*/false);

  if (recipe) {
    const RankName rank = rank_of_place(place, *recipe);
    if (process_name(rank.role, rank.rank) == kKeeper) return keep_run(command, place, *recipe);
  }
  join_run(command, place, std::move(recipe));
}

}  // namespace

void add_join(Command program) {
  Command c = program.command(
      "join", "become one rank of a run that a scheduler or any other program starts");
  JoinCommand& o = c.runs(run_join, OnSignal::kEndsInOrder);
  c.option("recipe", o.recipe, "recipe file (YAML); student/0 needs it");
  c.option("overrides", o.overrides, "key.path=value ...");
  c.option("--role", o.place.role, "or RETORT_ROLE; none: the rank counts all roles");
  c.option("--rank", o.place.rank, "or RETORT_RANK, or what a scheduler sets");
  c.option("--rendezvous", o.place.rendezvous, "HOST:PORT, or RETORT_RENDEZVOUS");
  c.option("--secret-file", o.place.secret_file, "or RETORT_SECRET_FILE");
  c.option("--advertise", o.place.advertise,
           "host[:port] that others reach this process by, or RETORT_ADVERTISE");
  c.option("--output", o.output, "the run's folder as this host sees it");
  c.option("--encryption", o.encryption,
           "auto | always | never, as the run's rpc.encryption; without a recipe");
  const Argument resume =
      c.flag("--resume", o.resume, "continue the run in output_dir from its newest checkpoint");
  c.flag("--overwrite", o.overwrite, "delete what is in output_dir first").excludes(resume);
}

}  // namespace retort::launch
