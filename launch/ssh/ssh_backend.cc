#include "launch/ssh/ssh_backend.h"

#include <algorithm>

#include "base/error.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kConnectTick{100};
constexpr Duration kLogsOfAllHosts{5'000};  // of all hosts together

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

std::vector<HostLinkOptions> links_to_hosts(const recipes::Recipe& recipe,
                                            const std::filesystem::path& run_folder,
                                            const std::string& mark,
                                            const std::filesystem::path& logs) {
  std::vector<HostLinkOptions> links;
  const auto log_patience = std::make_shared<LogPatience>();
  for (const recipes::HostOptions& host : recipe.launch.hosts)
    links.push_back({.host = host,
                     .ssh = recipe.launch.ssh,
                     .run_folder = run_folder,
                     .mark = mark,
                     .log = logs / ("host-" + host.host + ".log"),
                     .log_patience = log_patience,
                     .interval = recipe.rpc.heartbeats(recipe.num_processes()),
                     .limit = recipe.rpc.peer_timeout});
  return links;
}

SshBackend::SshBackend(std::vector<HostLinkOptions> hosts, HostsWanted wanted,
                       const SignalCatcher& signals) {
  for (HostLinkOptions& host : hosts) {
    names_.push_back(host.host.host);
    links_.push_back(std::make_unique<HostLink>(std::move(host)));
    end_.add(*links_.back());
  }

  // The wait needs no deadline, because each link has one of its own.
  const auto may_be_lost = [&](const HostLink& link) {
    return wanted == HostsWanted::kThoseLeft && link.lost() &&
           link.lost()->code() == ErrorCode::kUnavailable;
  };
  const auto decided = [&](const auto& link) {
    return link->facts().has_value() || may_be_lost(*link);
  };
  while (!std::ranges::all_of(links_, decided)) {
    std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}};
    poll_for(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kConnectTick.count()));
    work();
    // A host that the run cannot do without ends the start at once.
    for (const auto& link : links_)
      if (!may_be_lost(*link)) link->check();
    if (signals.any())
      throw Error(ErrorCode::kCancelled, "stopped before anything was started on the hosts");
  }
  // Where no host is left, the first one's error says why the run cannot go on.
  if (lost().size() == links_.size()) links_.front()->check();
  launcher_address();  // throws where there is none
}

SshBackend::~SshBackend() {
  // The links share one deadline, so that a file system that hangs is not waited for again by each.
  const Deadline deadline = Deadline::after(kLogsOfAllHosts);
  for (const auto& link : links_)
    link->drain_logs(deadline.remaining());
}

std::string SshBackend::launcher_address() const {
  // The store is reached at one address by all hosts. One at which a far host sees this launcher
  // will do; loopback only where every host is this machine.
  const auto is_here = [](const auto& link) { return link->facts().has_value(); };
  const auto far = std::ranges::find_if(links_, [&](const auto& link) {
    return is_here(link) && !is_loopback(link->facts()->launcher_address);
  });
  const bool alone = far == links_.end();
  for (size_t i = 0; i < links_.size(); ++i)
    if (!alone && is_here(links_[i]) && is_loopback(links_[i]->facts()->address))
      throw Error(ErrorCode::kInvalidArgument,
                  "launch.hosts: " + names_[i] + " is reached over loopback, at " +
                      links_[i]->facts()->address +
                      ", where other hosts do not find it; give it an `address`");
  const auto any = alone ? std::ranges::find_if(links_, is_here) : far;
  return (*any)->facts()->launcher_address;
}

LostHosts SshBackend::lost() const {
  LostHosts result;
  for (size_t i = 0; i < links_.size(); ++i)
    if (links_[i]->lost()) result.insert(i);
  return result;
}

std::unique_ptr<RoleProcess> SshBackend::start(const ProcessStart& start) {
  const auto host = std::ranges::find(names_, start.host);
  RETORT_CHECK(host != names_.end()) << "a process is placed on no host";
  return links_[static_cast<size_t>(host - names_.begin())]->start(start, [this] { work(); });
}

void SshBackend::poll_for(std::vector<pollfd>& entries) const {
  for (const auto& link : links_)
    link->poll_for(entries);
}

void SshBackend::work() {
  for (const auto& link : links_)
    link->work();
}

bool SshBackend::is_child(pid_t pid) const {
  return std::ranges::any_of(links_, [&](const auto& link) { return link->is_child(pid); });
}

}  // namespace retort::launch
