// What ties a role process to its launcher: reports up, the request to stop down, and the knowledge
// whether the launcher lives.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "base/units.h"
#include "launch/process/child_context.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/supervision/process_status.h"
#include "rpc/supervision/supervision.h"

namespace retort::launch {

// The process's end of its supervision connection (rpc/supervision/supervision.h), and a thread
// that acts when the launcher is lost:
//
//   a process that drives:   on_lost                      at once
//                            killed with its group        grace later
//   a process that serves:   goes on                      while `is_needed`, at most `need_limit`
//                            on_lost                      after that
//                            killed with its group        grace later
//
// so that the driving ones can save while somebody still answers them. With `next` both go on
// instead, for as long as the run trains, and dial another launcher once there is one. One that was
// asked to stop and has not ended long after the time it was given is killed with its group too:
// the launcher does that to the processes of its own host, for the others nobody else could.
//
// Nothing is killed once this object is destroyed. The destructor waits until the launcher has all
// reports, at most ChildContext::peer_timeout and not for one that is lost.
//
// Threads: any. Make it after the SignalCatcher, whose rule its threads keep.
class LauncherLink {
 public:
  struct Options {
    ChildContext context;
    std::function<void()> on_lost;  // called once; sets a stop flag; must not block
    // The launcher asks this process to end; sets a stop flag, must not block, may come again.
    // Null: the request is not answered, and the launcher sends SIGTERM.
    std::function<void()> on_stop;
    // Of a process that serves: whether a driving one still needs it. Asked ten times a second
    // while the launcher is gone; must not block.
    std::function<bool()> is_needed = {};
    Duration need_limit{0};
    Duration grace{10'000};  // for a process to end once it was told to
    // Of a run that goes on without its launcher (launch.launcher_lost: continue). Both are asked
    // twice a second while there is none, and must not block.
    struct Next {
      std::function<bool()> is_training;
      std::function<std::optional<LauncherAddress>()> find;  // nullopt until there is another one
    };
    std::optional<Next> next = {};
  };
  explicit LauncherLink(Options options);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  // Never waits.
  void report(const ProcessStatus& status);
  // Whether the launcher is lost: on_lost was called, or is about to be.
  bool lost();
  // Where it is, or was.
  LauncherAddress where();
  // Whether it is another one than the one that started this process, which knows no exit codes.
  bool is_another();
  // Another grace, for a launcher that is lost from now on: of a process that has something to
  // save.
  void set_grace(Duration grace);

 private:
  void watch();
  void dial(const LauncherAddress& launcher);
  std::shared_ptr<rpc::SupervisionClient> client();
  // True once there is another launcher, which is dialed.
  bool wait_for_another(std::unique_lock<std::mutex>& lock);
  // False when the destructor ends the waiting.
  bool wait_for_loss(std::unique_lock<std::mutex>& lock);
  bool wait_until_unneeded(std::unique_lock<std::mutex>& lock);

  const Options options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Duration grace_;
  std::string lost_;  // why; empty: it is not
  std::optional<Deadline> stop_by_;
  bool ended_ = false;
  LauncherAddress at_;
  bool is_another_ = false;
  std::optional<ProcessStatus> reported_;  // last

  std::shared_ptr<rpc::SupervisionClient> client_;
  std::thread thread_;
};

}  // namespace retort::launch
