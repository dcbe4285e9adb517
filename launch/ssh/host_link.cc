#include "launch/ssh/host_link.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/process/exec_arguments.h"
#include "base/process/pipe.h"
#include "launch/process/find_program.h"
#include "launch/process/shell_word.h"
#include "launch/ssh/host_version.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// How long ssh may take to reach a host and to log in there.
constexpr std::chrono::milliseconds kConnect{30'000};
// How long a host may take to spawn one process, which takes it milliseconds.
constexpr std::chrono::milliseconds kSpawn{60'000};
constexpr std::chrono::milliseconds kLinkTick{100};
constexpr std::chrono::milliseconds kEndTick{20};

// Nobody is there to be asked for anything (BatchMode). The connection is this launcher's alone (no
// ControlPath), so that it ends with the client. The keep-alives end the client of a host that is
// cut off soon after that host ends the run.
std::vector<std::string> ssh_arguments(const HostLinkOptions& options) {
  const auto seconds = [](Duration time) {
    return std::to_string(
        std::max<int64_t>(1, (std::chrono::milliseconds(time).count() + 999) / 1000));
  };
  std::vector<std::string> result{
      "-T",
      "-oBatchMode=yes",
      "-oControlPath=none",
      "-oClearAllForwardings=yes",
      "-oConnectTimeout=" + seconds(Duration(kConnect)),
      "-oServerAliveInterval=" + seconds(Duration(options.limit.count() / 3)),
      "-oServerAliveCountMax=3",
      "-p" + std::to_string(options.ssh.port)};
  if (options.ssh.user) result.push_back("-l" + *options.ssh.user);
  if (options.ssh.identity_file) result.push_back("-i" + *options.ssh.identity_file);
  result.insert(result.end(),
                {"--", options.host.host, "exec " + shell_word(options.ssh.program) + " host"});
  return result;
}

std::string last_words(const fs::path& log, int64_t offset) {
  const auto lines = log_tail(log, offset, 1);
  return lines.empty() ? "" : ": " + lines.back();
}

}  // namespace

// A process on the host, as far as the launcher has heard.
class HostLink::Process final : public RoleProcess {
 public:
  Process(HostLink& link, uint64_t id, const fs::path& log) : link_(link), id_(id), log_(log) {
    // The log is opened here already, so that one that cannot be written is an error before the
    // process starts.
    const OwnedFd opened(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (opened.get() < 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "cannot open " + log.string() + ": " + std::strerror(errno));
    link_.processes_[id_] = this;
  }
  ~Process() override {
    if (running()) signal_group(SIGKILL);
    link_.processes_.erase(id_);
  }

  pid_t pid() const override { return pid_; }
  bool running() const override { return pid_ > 0 && !status_; }
  bool stopped() const override { return running() && held_; }
  void signal(int number) override { tell(number, /*group=*/false); }
  void signal_group(int number) override { tell(number, /*group=*/true); }
  std::optional<int> try_reap() override { return status_; }
  std::string lost() const override { return lost_; }

  void take(const FromHost& frame) {
    switch (frame.kind) {
      case FromHostKind::kStarted: pid_ = static_cast<pid_t>(frame.number); break;
      case FromHostKind::kRefused: refused_ = frame.text; break;
      case FromHostKind::kHeld: held_ = frame.number != 0; break;
      case FromHostKind::kEnded:
        // Whoever tells why the process ended looks for its last words in the log, so they are
        // written before the end is known.
        link_.logs_.drain(*link_.options_.log_patience);
        status_ = static_cast<int>(frame.number);
        break;
      case FromHostKind::kOutput: link_.logs_.append(log_, frame.text); break;
      default: break;
    }
  }
  void lose(const std::string& why) {
    if (status_) return;
    lost_ = why;
    status_ = SIGKILL;
  }
  bool decided() const { return pid_ > 0 || !refused_.empty() || status_; }
  const std::string& refused() const { return refused_; }

 private:
  void tell(int number, bool group) {
    if (running())
      link_.tell({.kind = ToHostKind::kSignal, .id = id_, .number = number, .group = group});
  }

  HostLink& link_;
  const uint64_t id_;
  const fs::path log_;
  pid_t pid_ = 0;
  bool held_ = false;
  std::string refused_, lost_;
  std::optional<int> status_;
};

HostLink::HostLink(HostLinkOptions options)
    : options_(std::move(options)), signs_(options_.interval, Duration(2 * kConnect)) {
  Pipe to_host = make_pipe(), from_host = make_pipe();
  std::error_code missing;
  const auto before = fs::file_size(options_.log, missing);  // what an earlier start said
  log_offset_ = missing ? 0 : static_cast<int64_t>(before);
  // ssh's stdout carries frames. What ssh itself says goes to the log, where last_words() finds it.
  ssh_.emplace(SpawnOptions{.program = find_program("ssh", "launch.backend: ssh", "openssh-client"),
                            .arguments = ssh_arguments(options_),
                            .environment = own_environment(),
                            .log = options_.log,
                            .output_fd = from_host.in.get(),
                            .errors_to_log = true,
                            .input_fd = to_host.out.get()});
  stream_.emplace(std::move(from_host.out), std::move(to_host.in));
}

HostLink::~HostLink() { end_all({this}, Deadline::after(kEndOfHosts)); }

void HostLink::check() const {
  if (lost_) throw *lost_;
}

void HostLink::poll_for(std::vector<pollfd>& entries) const {
  if (lost_) return;
  if (!logs_.full()) entries.push_back({stream_->in(), POLLIN, 0});
  if (stream_->unsent() > 0) entries.push_back({stream_->out(), POLLOUT, 0});
}

void HostLink::work() {
  logs_.work();
  ssh_->try_reap();
  if (lost_) return;
  // Time in which this process itself stood still is not the host's silence (HeartbeatClock).
  signs_.look();
  try {
    listen();
  } catch (const Error& error) {
    lose(error);
  }
}

// What came before the end of a connection counts before the end does. While the logs are full
// nothing is taken, so that the host, and then its processes, wait.
void HostLink::listen() {
  bool full = logs_.full();
  const bool open = full || stream_->fill();
  if (!greeted_) greet();
  while (greeted_ && !(full = logs_.full())) {
    auto frame = stream_->next();
    if (!frame) break;
    signs_.heard();
    take(read_from_host(*frame));
  }

  if (greeted_ && signs_.due()) tell({});
  const bool sent = stream_->flush();
  // While the logs are full, frames from before the end may wait unread, and a host that nobody
  // listens to is not silent.
  if (full) return signs_.heard();
  if (!open || !sent)
    throw Error(ErrorCode::kUnavailable,
                name() + (facts_ ? " has ended the connection" : " could not be reached") +
                    last_words(options_.log, log_offset_));
  if (signs_.silent())
    throw Error(
        ErrorCode::kUnavailable,
        name() + (greeted_ ? " is silent for " + format_duration(options_.limit)
                           : " did not answer within " + format_duration(Duration(2 * kConnect))));
}

// The host's version is compared before it is told anything: a frame of another version may mean
// something else.
void HostLink::greet() {
  const auto line = stream_->line(kVersionBeginning);
  if (!line) return;
  if (*line != version_line())
    throw Error(ErrorCode::kMismatch, name() + " has another program than this host: " +
                                          line->substr(kVersionBeginning.size()) + "; here it is " +
                                          version_line().substr(kVersionBeginning.size()));
  greeted_ = true;
  signs_ = HeartbeatClock(options_.interval, options_.limit);
  tell({.kind = ToHostKind::kPlace,
        .folder = fs::current_path().string(),
        .run_folder = options_.run_folder.string(),
        .interval_ms = options_.interval.count(),
        .limit_ms = options_.limit.count()});
}

void HostLink::take(FromHost frame) {
  if (frame.kind == FromHostKind::kHere) return take_here(frame);
  if (frame.kind == FromHostKind::kExamined) {
    examined_ = std::move(frame.text);
    return;
  }
  if (frame.kind == FromHostKind::kRefused && frame.id == 0)
    throw Error(
        ErrorCode::kUnavailable,
        name() + " does not see the folders of this run, which must be shared: " + frame.text);
  // A host may still tell of a process whose object is gone, which nobody wants to know.
  const auto process = processes_.find(frame.id);
  if (process != processes_.end()) process->second->take(frame);
}

void HostLink::take_here(const FromHost& frame) {
  // The mark is a random text in the run's folder, which only a host that shares the folder can
  // read.
  if (frame.text != options_.mark)
    throw Error(ErrorCode::kUnavailable,
                name() + ": " + options_.run_folder.string() +
                    " is another folder there than here; the run's folder must be shared");
  // SSH_CONNECTION is "client port server port", as the host sees the connection.
  std::istringstream connection(frame.connection);
  std::string from, port, to;
  connection >> from >> port >> to;
  if (options_.host.address) to = *options_.host.address;
  if (to.empty() || from.empty())
    throw Error(ErrorCode::kUnavailable,
                name() + " does not say how it was reached (SSH_CONNECTION)");
  facts_ = HostFacts{
      .address = to, .launcher_address = from, .cores = std::max<int64_t>(1, frame.number)};
}

void HostLink::lose(Error why) {
  lost_ = std::move(why);
  stream_->close_out();
  ssh_->signal_group(SIGTERM);
  // Nothing can be known of its processes, or done to them, from here any more.
  for (const auto& [id, process] : processes_)
    process->lose(lost_->message());
}

void HostLink::examine(const std::string& question) {
  tell({.kind = ToHostKind::kExamine, .question = question});
}

void HostLink::tell(const ToHost& frame) {
  if (!lost_) stream_->send(rpc::to_bytes(frame));
}

std::unique_ptr<RoleProcess> HostLink::start(const ProcessStart& start,
                                             const std::function<void()>& work_all) {
  check();
  const uint64_t id = next_id_++;
  auto process = std::make_unique<Process>(*this, id, start.log);
  tell({.kind = ToHostKind::kStart,
        .id = id,
        .context = encode_context(start.context),
        .arguments = start.arguments,
        .env = start.env,
        .log = start.log.string(),
        .driving = start.driving});
  // The caller waits for the host's answer. All links are worked meanwhile, or their hosts would
  // take this launcher for silent.
  const Deadline deadline = Deadline::after(kSpawn);
  while (!process->decided()) {
    std::vector<pollfd> entries;
    poll_for(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kLinkTick.count()));
    work_all();
    check();
    if (deadline.expired())
      throw Error(ErrorCode::kUnavailable, name() + " has not started a process in time");
  }
  if (!process->refused().empty())
    throw Error(ErrorCode::kUnavailable, name() + ": " + process->refused());
  return process;
}

// True once the client has ended. Until then what it writes is read and dropped: nobody else takes
// it, and a client that cannot write does not end.
bool HostLink::has_ended() {
  if (ssh_->try_reap()) return true;
  if (!lost_ && !stream_->flush()) lose(Error(ErrorCode::kUnavailable, name() + " is gone"));
  stream_->fill();
  stream_->drop();
  return false;
}

void HostLink::end_all(const std::vector<HostLink*>& links, Deadline deadline) {
  std::vector<HostLink*> open;
  for (HostLink* link : links)
    if (link->stream_->out() >= 0 && !link->lost_) open.push_back(link);
  for (HostLink* link : open)
    link->tell({.kind = ToHostKind::kEnd});

  // All links are waited for together, so that one that hangs keeps none of the others waiting.
  std::vector<HostLink*> waiting = open;
  for (;;) {
    std::erase_if(waiting, [](HostLink* link) { return link->has_ended(); });
    if (waiting.empty() || deadline.expired()) break;
    std::vector<pollfd> entries;
    for (const HostLink* link : waiting)
      entries.push_back({link->ssh_->pidfd(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), static_cast<int>(kEndTick.count()));
  }

  for (HostLink* link : open)
    if (!link->lost_) link->lose(Error(ErrorCode::kUnavailable, link->name() + " has finished"));
}

}  // namespace retort::launch
