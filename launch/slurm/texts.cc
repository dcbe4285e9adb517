#include "launch/slurm/texts.h"

#include <algorithm>
#include <sstream>

#include "launch/process/shell_word.h"

namespace retort::launch {
namespace {

// How long the launcher has to see that all processes have ended, and to end.
constexpr Duration kToEnd{30'000};

int64_t seconds_of(Duration time) {
  return std::max<int64_t>(1, (std::chrono::milliseconds(time).count() + 999) / 1000);
}

// Slurm replaces %t and the like in names of files.
std::string plain_name(const std::filesystem::path& file) {
  std::string name;
  for (const char c : file.string())
    name += c == '%' ? std::string("%%") : std::string(1, c);
  return name;
}

// The threads that a process of the run asks for; 0: none says it.
int64_t most_threads(const recipes::Recipe& recipe) {
  int64_t threads = 0;
  for (const auto& [name, role] : recipe.roles)
    threads = std::max(threads, role.world.threads);
  return threads;
}

std::vector<std::string> sbatch_options(const BatchText& batch) {
  const recipes::Recipe& recipe = batch.recipe;
  const recipes::SlurmOptions& slurm = recipe.launch.slurm;
  std::vector<std::string> options{
      "--job-name=" + batch.run_folder.filename().string(),
      "--output=" + plain_name(batch.run_folder) + "/slurm-%j.log",
      "--open-mode=append",
      "--ntasks=" + std::to_string(recipe.num_processes()),
      "--signal=B:USR1@" + std::to_string(seconds_of(warning_time(recipe.launch))),
      slurm.requeue ? "--requeue" : "--no-requeue"};
  if (const int64_t threads = most_threads(recipe); threads > 0)
    options.push_back("--cpus-per-task=" + std::to_string(threads));
  if (slurm.partition) options.push_back("--partition=" + *slurm.partition);
  if (slurm.account) options.push_back("--account=" + *slurm.account);
  if (slurm.time) options.push_back("--time=" + *slurm.time);
  if (slurm.gres) options.push_back("--gres=" + *slurm.gres);
  options.insert(options.end(), slurm.args.begin(), slurm.args.end());
  return options;
}

// scancel asks all processes of the job to end, the launcher among them: told once more by this
// script, it would take that for the second time, which kills. The warning before the time limit
// reaches this script alone.
//
// Bash runs a trap when `wait` is interrupted, which then returns no exit code of the launcher's:
// it is waited for again, and one that was waited for already gives 127.
constexpr const char* kWait = R"(launcher= caught= cancelled= warned=
stop() {
  [ -z "$launcher" ] || [ -n "$cancelled" ] || kill -TERM "$launcher"
}
trap 'caught=1; cancelled=1' TERM     # somebody cancels the job, and so its launcher
trap 'caught=1; warned=1; stop' USR1  # its time is nearly up

%LAUNCH% &
launcher=$!
[ -z "$warned" ] || stop
wait "$launcher"
code=$?
while [ -n "$caught" ]; do
  caught=
  wait "$launcher" 2>/dev/null
  again=$?
  [ "$again" -eq 127 ] || code=$again
done
)";
constexpr const char* kRequeue = R"(
# 4: stopped with a checkpoint, here because its time is nearly up; %AGAIN%: a process was lost.
if { [ "$code" -eq 4 ] && [ -n "$warned" ]; } || [ "$code" -eq %AGAIN% ]; then
  if [ -z "$cancelled" ]; then
    echo "queued again: the run goes on from its last checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
[ "$code" -ne %AGAIN% ] || code=1
)";

std::string replaced(std::string text, const std::string& name, const std::string& value) {
  for (size_t at = text.find(name); at != std::string::npos;
       at = text.find(name, at + value.size()))
    text.replace(at, name.size(), value);
  return text;
}

}  // namespace

std::vector<std::string> srun_arguments(const StepText& step) {
  std::vector<std::string> arguments{
      "--job-name=" + step.name, "--ntasks=" + std::to_string(step.tasks),
      "--cpus-per-task=" + std::to_string(step.cpus_per_task),
      "--nodes=1-" + std::to_string(std::min(step.tasks, step.most_nodes)),
      // A node is filled before the next one is begun, whatever the allocation was asked for with:
      // tp ranks, which stand beside one another, are on one node.
      "--distribution=block",
      // Steps of other roles run beside it: it takes the cores of its tasks alone, and no memory
      // for itself.
      "--exact", "--mem=0",
      // Nothing waits for ever for nodes that are busy or gone.
      "--immediate=" + std::to_string(seconds_of(step.start_timeout)),
      // When a task fails or is done the launcher decides what becomes of the others.
      "--kill-on-bad-exit=0", "--wait=0", "--export=ALL", "--input=none",
      "--output=" + plain_name(step.logs) + "/" + step.role + "-%t.log", "--open-mode=append"};
  // The tasks of a node share out its devices among themselves.
  if (step.cuda)
    arguments.insert(arguments.end(), {"--gpus-per-task=1", "--gpu-bind=none"});
  else
    arguments.push_back("--gres=none");
  arguments.insert(arguments.end(), step.command.begin(), step.command.end());
  return arguments;
}

std::string batch_script(const BatchText& batch) {
  std::ostringstream script;
  script << "#!/bin/bash\n"
         << "# Written by `retort launch --submit`: goes on with the run in this folder.\n";
  for (const std::string& option : sbatch_options(batch))
    script << "#SBATCH " << shell_word(option) << "\n";
  const std::string recipe = batch.recipe_file.string();
  const std::string launch = shell_word(batch.program.string()) + " launch " + shell_word(recipe) +
                             " --resume --submitted";
  script << "\n" << replaced(kWait, "%LAUNCH%", launch);
  if (batch.recipe.launch.slurm.requeue)
    script << replaced(kRequeue, "%AGAIN%", std::to_string(kExitQueueAgain));
  script << "exit \"$code\"\n";
  return script.str();
}

Duration warning_time(const recipes::LaunchOptions& launch) { return launch.stop_timeout + kToEnd; }

}  // namespace retort::launch
