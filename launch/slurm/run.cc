#include "launch/slurm/run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/options.h"
#include "base/process/owned_fd.h"
#include "base/process_name.h"
#include "launch/run_folder/secret_file.h"
#include "launch/slurm/command.h"
#include "launch/slurm/texts.h"
#include "rpc/listen_address.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// A port is needed to find the way to a node; any will do.
constexpr uint16_t kSlurmdPort = 6818;
constexpr std::chrono::milliseconds kStepStart{60'000};

[[noreturn]] void refuse_job(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// "gpu1" or "::1" and a port as `retort join` reads them.
std::string rendezvous_text(const RunStart& start) {
  const bool is_ipv6 = start.store_host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + start.store_host + "]" : start.store_host) + ":" +
         std::to_string(start.store_port);
}

// Refuses keys that ask for an allocation: this one was asked for already, whatever the recipe
// says.
void refuse_job_keys(const recipes::SlurmOptions& slurm) {
  const recipes::SlurmOptions usual;
  const auto refuse = [](const std::string& key, bool is_written) {
    if (is_written)
      refuse_job("launch.slurm." + key +
                 " has no effect inside an allocation, which is there already; remove it, or let "
                 "`retort launch --submit` ask for one");
  };
  refuse("partition", slurm.partition.has_value());
  refuse("account", slurm.account.has_value());
  refuse("time", slurm.time.has_value());
  refuse("gres", slurm.gres.has_value());
  refuse("args", !slurm.args.empty());
  refuse("requeue", slurm.requeue != usual.requeue);
}

}  // namespace

SecretFile::SecretFile(fs::path path, const std::string& secret) : path_(std::move(path)) {
  // A file that a killed launcher left behind may still be somebody's who reads it, so this secret
  // goes into a new one.
  std::error_code missing;
  fs::remove(path_, missing);
  const OwnedFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0 ||
      ::write(fd.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    throw Error(ErrorCode::kUnavailable,
                "cannot write " + path_.string() + ": " + std::strerror(errno));
}

SecretFile::~SecretFile() {
  std::error_code gone;
  fs::remove(path_, gone);
}

std::string slurm_store_bind(const recipes::Recipe& recipe, const SlurmJob& job) {
  if (recipe.launch.rendezvous.address) return *recipe.launch.rendezvous.address;
  return rpc::listen_address(recipe.rpc.bind, job.first_host, kSlurmdPort);
}

SlurmRun::SlurmRun(const recipes::Recipe& recipe, const RunFolder& folder, const SlurmJob& job,
                   const rpc::RendezvousAccess& access, const SignalCatcher& signals)
    : recipe_(recipe),
      folder_(folder),
      job_(job),
      access_(access),
      keeper_({.recipe = recipe,
               .access = {.host = {},
                          .port = 0,
                          .secret = access.secret,
                          .encryption = access.encryption,
                          .own_name = "launcher"},
               .is_stopping =
                   [this, &signals] {
                     steps_.check();
                     return signals.any();
                   },
               .check = [&recipe](const auto& members) { check_nodes(recipe, members); }}),
      steps_(job.id) {
  if (!recipe.launch.secret_file) secret_.emplace(folder.path() / kStepSecret, access.secret);
}

std::vector<ProcessSpec> SlurmRun::processes(const RunStart& start) {
  start_steps(start);
  std::vector<ProcessSpec> specs = keeper_.processes(folder_, start);
  for (ProcessSpec& spec : specs) {
    const std::string role = spec.context.role;
    spec.joined->signal = [this, role](int number) { steps_.signal(role, number); };
    const int64_t rank = spec.context.rank;
    spec.joined->ended = [this, role, rank] { return steps_.ended(role, rank); };
    spec.joined->log = folder_.logs() / (role + "-" + std::to_string(rank) + ".log");
  }
  return specs;
}

void SlurmRun::start_steps(const RunStart& start) {
  fs::create_directories(folder_.logs());
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const std::string secret = secret_ ? secret_->path().string() : *recipe_.launch.secret_file;
  for (const auto& [role, options] : recipe_.roles) {
    const int64_t threads = options.world.threads;
    StepText text{.name = "retort-" + std::to_string(start.incarnation) + "-" + role,
                  .role = role,
                  .tasks = options.world.world_size(),
                  .cpus_per_task = threads > 0 ? threads : job_.cpus_per_task,
                  .most_nodes = job_.num_nodes,
                  .cuda = options.world.device == parallel::Device::kCuda,
                  .start_timeout = std::min<Duration>(kStepStart, recipe_.launch.load_timeout),
                  .logs = folder_.logs()};

    // The secret goes by a file, because everybody on a node can read the arguments of a process.
    text.command = {program,         "join",
                    "--role",        role,
                    "--rendezvous",  rendezvous_text(start),
                    "--secret-file", fs::absolute(secret).string(),
                    "--output",      folder_.path().string(),
                    "--encryption",  std::string(enum_name(access_.encryption))};

    // Variables go by srun's environment: its arguments would show them, too.
    steps_.start_step({.name = text.name,
                       .role = role,
                       .arguments = srun_arguments(text),
                       .log = folder_.logs() / ("srun-" + role + ".log"),
                       .variables = options.env});
  }
}

void check_nodes(const recipes::Recipe& recipe, const std::vector<Member>& members) {
  std::map<std::string, std::string> node_of;
  for (const Member& member : members)
    node_of[member.name] = member.host;
  for (const auto& [name, options] : recipe.roles) {
    // The tp ranks that compute together have numbers beside one another.
    const int64_t tp = options.world.tp;
    for (int64_t rank = 0; rank < options.world.world_size(); ++rank) {
      const std::string first = process_name(name, rank - rank % tp);
      const std::string other = process_name(name, rank);
      if (node_of.at(first) != node_of.at(other))
        refuse_job("roles." + name + ".world.tp is " + std::to_string(tp) +
                   ", and such ranks compute together on one node, but Slurm has put " + first +
                   " on " + node_of.at(first) + " and " + other + " on " + node_of.at(other) +
                   "; ask for a multiple of tp on each node with --ntasks-per-node, or for fewer "
                   "nodes");
    }
  }
}

SlurmJob check_slurm_job(const recipes::Recipe& recipe, bool was_submitted) {
  const auto job = slurm_job(own_variables());
  if (!job)
    refuse_job(
        "launch.backend: slurm, and this is no allocation: start it with salloc or in a batch "
        "script, or let `retort launch --submit` write one");
  if (!was_submitted) refuse_job_keys(recipe.launch.slurm);
  check_stop_timeout(recipe.launch.stop_timeout,
                     kill_wait_of(ask_slurm("scontrol", {"show", "config"})));
  return *job;
}

}  // namespace retort::launch
