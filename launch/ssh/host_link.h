// A launcher's connection to one other host: the ssh client that runs `retort host` there, and the
// processes that it has started.
#pragma once

#include <poll.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "launch/process/child_process.h"
#include "launch/ssh/frame_stream.h"
#include "launch/ssh/heartbeat_clock.h"
#include "launch/ssh/host_frames.h"
#include "launch/supervision/backend.h"
#include "launch/writers/log_writer.h"
#include "recipes/document/hosts_options.h"

namespace retort::launch {

struct HostLinkOptions {
  recipes::HostOptions host;
  recipes::SshOptions ssh;
  std::filesystem::path run_folder;
  std::string mark;           // what the host must read there (run_mark.h)
  std::filesystem::path log;  // what ssh and the host's own program say
  // How long what a process wrote last may take to be in its log; shared by the links of one
  // thread.
  std::shared_ptr<LogPatience> log_patience = std::make_shared<LogPatience>();
  Duration interval{1'000}, limit{15'000};
};

// What a host says of itself.
struct HostFacts {
  std::string address;           // of the host, for others
  std::string launcher_address;  // as the host sees it
  int64_t cores = 1;
};

// How long all hosts of a run together have to end their parts once nothing runs there.
inline constexpr Duration kEndOfHosts{10'000};

// Threads: one. Outlives the processes that it started.
class HostLink {
 public:
  // Begins to connect. kInvalidArgument when there is no ssh.
  explicit HostLink(HostLinkOptions options);
  ~HostLink();  // ends the host's part of the run if end_all() did not
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  // What the host said; nullopt until then. kMismatch for another program, kUnavailable for a host
  // that cannot be reached or does not see the run's folder.
  const std::optional<HostFacts>& facts() const { return facts_; }
  void check() const;
  // Why it is lost, or could not be reached; null: it is not.
  const Error* lost() const { return lost_ ? &*lost_ : nullptr; }

  // Asks what `retort doctor` asks a host (launch/doctor/host_answer.h). work() takes the answer,
  // which is there from then on.
  void examine(const std::string& question);
  const std::optional<std::string>& examined() const { return examined_; }

  // Waits until it has started; calls `work_all` ten times a second, which works this link and
  // those to other hosts, who hear from the launcher meanwhile. kUnavailable when the host is lost.
  std::unique_ptr<RoleProcess> start(const ProcessStart& start,
                                     const std::function<void()>& work_all);
  void poll_for(std::vector<pollfd>& entries) const;
  void work();
  bool is_child(pid_t pid) const { return ssh_->running() && ssh_->pid() == pid; }

  // Waits until what has come for the logs is written.
  void drain_logs(Duration patience) { logs_.drain(patience); }
  // Nothing runs any more: the hosts' parts end, all of them at the same time. What is not done at
  // the deadline, which is one for all, is cut off.
  static void end_all(const std::vector<HostLink*>& links, Deadline deadline);

 private:
  class Process;
  void listen();
  void greet();
  void take(FromHost frame);
  void take_here(const FromHost& frame);
  void lose(Error why);
  bool has_ended();
  void tell(const ToHost& frame);
  std::string name() const { return "host " + options_.host.host; }

  const HostLinkOptions options_;
  std::optional<ChildProcess> ssh_;
  std::optional<FrameStream> stream_;
  int64_t log_offset_ = 0;
  HeartbeatClock signs_;
  bool greeted_ = false;  // its version was right
  std::optional<HostFacts> facts_;
  std::optional<std::string> examined_;
  std::optional<Error> lost_;
  uint64_t next_id_ = 1;
  LogWriter logs_;
  std::map<uint64_t, Process*> processes_;
};

// Ends links as end_all() does when it is destroyed, which must be before they are.
class EndOfLinks {
 public:
  EndOfLinks() = default;
  ~EndOfLinks() { HostLink::end_all(links_, Deadline::after(kEndOfHosts)); }
  EndOfLinks(const EndOfLinks&) = delete;
  EndOfLinks& operator=(const EndOfLinks&) = delete;

  void add(HostLink& link) { links_.push_back(&link); }

 private:
  std::vector<HostLink*> links_;
};

}  // namespace retort::launch
