#include "recipes/run/checkpoints/checkpoint_command.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/process/run_program.h"
#include "base/process/start.h"

namespace retort::recipes {
namespace fs = std::filesystem;

struct CheckpointCommand::Impl {
  explicit Impl(Options given) : options(std::move(given)) {}

  // Runs on the thread: takes the checkpoint that waits, until there are no more to come.
  void work();
  std::string name_of(const fs::path& checkpoint) const {
    return "train.checkpoint_command ('" + options.argv.front() + "') for " + checkpoint.string();
  }

  const Options options;
  std::atomic<bool> give_up{false};
  mutable std::mutex mutex;  // of what is below
  std::condition_variable changed;
  std::optional<fs::path> waiting, running;
  std::vector<std::string> messages;
  bool closed = false;
  std::thread thread;  // started last
};

void CheckpointCommand::Impl::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return waiting || closed; });
    if (!waiting) return;
    running = std::exchange(waiting, std::nullopt);
    std::vector<std::string> argv = options.argv;
    argv.push_back(fs::absolute(*running).string());

    // The program runs without the lock, so that neither give() nor in_use() waits for it.
    lock.unlock();
    const std::string wrong = run_program(argv, options.timeout, give_up);
    lock.lock();

    if (!wrong.empty()) messages.push_back(name_of(*running) + " failed: " + wrong);
    running.reset();
    changed.notify_all();
  }
}

CheckpointCommand::CheckpointCommand(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  const std::string& program = impl_->options.argv.front();
  if (path_in_environment(program).empty())
    throw Error(ErrorCode::kInvalidArgument,
                "train.checkpoint_command: there is no program '" + program + "' in PATH");
  impl_->thread = std::thread([impl = impl_.get()] { impl->work(); });
}

CheckpointCommand::~CheckpointCommand() {
  // A program that runs is given up, and none is started for a checkpoint that still waits.
  impl_->give_up = true;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->waiting.reset();
    impl_->closed = true;
    impl_->changed.notify_all();
  }
  impl_->thread.join();
}

void CheckpointCommand::give(const fs::path& checkpoint) {
  const std::lock_guard lock(impl_->mutex);
  // Only the newest checkpoint waits. A queue would fall ever further behind where the program is
  // slower than training, and keep ever more folders from being removed.
  if (impl_->waiting)
    impl_->messages.push_back(impl_->name_of(*impl_->waiting) +
                              " was passed over: it is still at " +
                              impl_->running.value_or("an older one").string());
  impl_->waiting = checkpoint;
  impl_->changed.notify_all();
}

std::vector<fs::path> CheckpointCommand::in_use() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<fs::path> folders;
  for (const auto& one : {impl_->waiting, impl_->running})
    if (one) folders.push_back(*one);
  return folders;
}

std::vector<std::string> CheckpointCommand::take_messages() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->messages, {});
}

void CheckpointCommand::finish() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return !impl_->waiting && !impl_->running; });
}

}  // namespace retort::recipes
