#include "launch/links/measure_links.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "base/deadline.h"
#include "base/hash.h"
#include "base/host_name.h"
#include "launch/backends/local_backend.h"
#include "launch/backends/run_store.h"
#include "launch/run_folder/run_folder.h"
#include "launch/run_folder/run_mark_trial.h"
#include "launch/run_folder/scratch_folder.h"
#include "launch/ssh/run_hosts.h"
#include "launch/ssh/ssh_backend.h"
#include "launch/supervision/supervisor.h"
#include "launch/yaml/resolved_yaml.h"
#include "parallel/world.h"
#include "rpc/archive.h"
#include "rpc/listen_address.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch::links {
namespace {

namespace fs = std::filesystem;
using recipes::Recipe;

constexpr std::chrono::milliseconds kLinkTick{50};
constexpr std::chrono::milliseconds kEnding{30'000};

// Larger messages of a recipe are measured at this size: the rate is the same.
constexpr int64_t kLargest = int64_t{64} << 20;

// A process on a host, for the students or for those that serve: two on one host are two, as ranks
// are.
struct End {
  size_t host = 0;
  bool student = false;
  bool operator==(const End&) const = default;
};

// The processes, and the store in which they get their jobs.
class LinkRun {
 public:
  LinkRun(const Recipe& recipe, const SignalCatcher& signals)
      : recipe_(recipe),
        signals_(signals),
        mark_(recipe.launch.hosts.empty() ? nullptr : make_mark(recipe)),
        hosts_(make_hosts()),
        backend_(hosts_ ? nullptr
                        : std::make_unique<LocalBackend>(fs::read_symlink("/proc/self/exe"), -1)),
        // The recipe's own port may be taken by a run.
        store_(serve_store(recipe, access_, store_bind(recipe, hosts_.get()), /*port=*/0)),
        client_(store_.host(), store_.port(), access_.run + "/", kLinkConnection,
                rpc::store_connector({.name = "check/0",
                                      .run = access_.run,
                                      .secret = access_.secret,
                                      .encryption = access_.encryption})) {}

  bool encrypts() const {
    return rpc::settled_encryption(recipe_.rpc.encryption, store_.host()) ==
           rpc::Encryption::kAlways;
  }

  std::string host_name_of(size_t host) const {
    return hosts_ ? recipe_.launch.hosts[host].host : host_name();
  }

  // The rank of the process at that end; it is started when it is first asked for.
  int64_t rank_of(const End& end) {
    const auto found = std::ranges::find(ends_, end);
    const auto rank = static_cast<int64_t>(found - ends_.begin());
    if (found != ends_.end()) return rank;
    ends_.push_back(end);
    start(end, rank);
    return rank;
  }

  LinkResult measure(LinkJob job) {
    const std::string suffix = tell(job);
    wait_for("result" + suffix);
    wait_for("closed" + suffix);
    return rpc::from_bytes<LinkResult>(client_.get("result" + suffix, Deadline::after(kJobLimit)));
  }

  // The processes end by themselves.
  void finish() {
    tell(LinkJob());
    const Deadline deadline = Deadline::after(kEnding);
    for (const auto& process : processes_)
      while (!process->try_reap() && !deadline.expired())
        pump();
  }

 private:
  static std::unique_ptr<RunMarkTrial> make_mark(const Recipe& recipe) {
    auto mark = std::make_unique<RunMarkTrial>(run_folder_of(recipe));
    if (mark->error()) throw *mark->error();
    return mark;
  }

  std::unique_ptr<SshBackend> make_hosts() const {
    if (!mark_) return nullptr;
    return std::make_unique<SshBackend>(
        links_to_hosts(recipe_, run_folder_of(recipe_), mark_->text(), scratch_.path()),
        HostsWanted::kAll, signals_);
  }

  Backend& backend() { return hosts_ ? static_cast<Backend&>(*hosts_) : *backend_; }

  void start(const End& end, int64_t rank) {
    ProcessStart start;
    start.context = {.run = access_.run,
                     .role = kLinkRole,
                     .rank = rank,
                     .store_host = store_.host(),
                     .store_port = store_.port(),
                     .secret = access_.secret,
                     .encryption = access_.encryption,
                     .bind = recipe_.rpc.bind};
    start.context.recipe = resolved_yaml(recipe_);
    if (hosts_) {
      start.host = recipe_.launch.hosts[end.host].host;
      if (recipe_.rpc.bind == rpc::RpcOptions().bind)
        start.context.bind = hosts_->facts(end.host).address;
    }
    start.arguments = {kLinkRole};
    start.log = scratch_.path() / (kLinkRole + ("-" + std::to_string(rank)) + ".log");
    logs_.push_back(start.log);
    processes_.push_back(backend().start(start));
  }

  std::string tell(const LinkJob& job) {
    const std::string suffix = "/" + std::to_string(next_job_++);
    client_.set("job" + suffix, rpc::to_bytes(job));
    return suffix;
  }

  void wait_for(const std::string& key) {
    const Deadline deadline = Deadline::after(kJobLimit);
    while (!client_.contains(key)) {
      pump();
      for (size_t i = 0; i < processes_.size(); ++i)
        if (processes_[i]->try_reap()) throw ended_early(i);
      if (deadline.expired())
        throw Error(ErrorCode::kTimeout, "a link was not measured within " +
                                             format_duration(Duration(kJobLimit)) + ": " + key);
    }
  }

  Error ended_early(size_t process) const {
    const auto lines = log_tail(logs_[process], 0, 1);
    return Error(ErrorCode::kUnavailable, "the process that measures links on " +
                                              host_name_of(ends_[process].host) + " has ended" +
                                              (lines.empty() ? "" : ": " + lines.back()));
  }

  void pump() {
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
    backend().poll_for(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kLinkTick.count()));
    backend().work();
    if (signals_.any()) throw Error(ErrorCode::kCancelled, "stopped while links were measured");
  }

  const Recipe& recipe_;
  const SignalCatcher& signals_;
  const ScratchFolder scratch_;
  const std::unique_ptr<RunMarkTrial> mark_;
  const std::unique_ptr<SshBackend> hosts_;
  const std::unique_ptr<LocalBackend> backend_;
  const rpc::RendezvousAccess access_{
      .name = {}, .run = "links", .secret = random_hex(32), .encryption = recipe_.rpc.encryption};
  rpc::RendezvousServer store_;
  parallel::StoreClient client_;
  std::vector<End> ends_;
  std::vector<fs::path> logs_;
  std::vector<std::unique_ptr<RoleProcess>> processes_;
  int64_t next_job_ = 0;
};

}  // namespace

MeasuredLinks measure_links(const Recipe& recipe, const SignalCatcher& signals) {
  MeasuredLinks measured;
  const std::vector<Traffic> traffic = traffic_of(recipe);
  if (traffic.empty()) return measured;

  LinkRun run(recipe, signals);
  measured.encrypts = run.encrypts();
  for (const Traffic& one : traffic)
    for (const HostPair& pair : host_pairs(recipe, one.role)) {
      // Both kinds of connection are measured, whatever the recipe has, so that the table shows
      // what encryption costs.
      MeasuredLink link{.traffic = one,
                        .pair = pair,
                        .student_host = run.host_name_of(pair.student),
                        .server_host = run.host_name_of(pair.server),
                        .encrypted = {},
                        .plain = {}};
      const int64_t student = run.rank_of({.host = pair.student, .student = true});
      const int64_t server = run.rank_of({.host = pair.server, .student = false});
      LinkJob job{.asker = student,
                  .server = server,
                  .to_asker = one.to_student,
                  .message_bytes = std::clamp<int64_t>(one.message_bytes, 1, kLargest)};
      link.plain = run.measure(job);
      job.encrypted = true;
      link.encrypted = run.measure(job);
      measured.links.push_back(std::move(link));
    }
  run.finish();
  return measured;
}

}  // namespace retort::launch::links
