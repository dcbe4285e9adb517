#include "launch/backends/ssh_backend.h"

#include <algorithm>

#include "base/error.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kConnectTick{100};

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

SshBackend::SshBackend(std::vector<HostLinkOptions> hosts, const SignalCatcher& signals) {
  for (HostLinkOptions& host : hosts) {
    names_.push_back(host.host.host);
    links_.push_back(std::make_unique<HostLink>(std::move(host)));
  }

  // Each link has a deadline of its own.
  const auto all_here = [&] {
    return std::ranges::all_of(links_, [](const auto& link) { return link->facts().has_value(); });
  };
  while (!all_here()) {
    std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}};
    poll_for(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kConnectTick.count()));
    work();
    for (const auto& link : links_)
      link->check();
    if (signals.any())
      throw Error(ErrorCode::kCancelled, "stopped before anything was started on the hosts");
  }
  launcher_address();  // throws where there is none
}

SshBackend::~SshBackend() = default;

std::string SshBackend::launcher_address() const {
  const auto far = std::ranges::find_if(
      links_, [](const auto& link) { return !is_loopback(link->facts()->launcher_address); });
  const bool alone = far == links_.end();
  for (size_t i = 0; i < links_.size(); ++i)
    if (!alone && is_loopback(links_[i]->facts()->address))
      throw Error(ErrorCode::kInvalidArgument,
                  "launch.hosts: " + names_[i] + " is reached over loopback, at " +
                      links_[i]->facts()->address +
                      ", where other hosts do not find it; give it an `address`");
  return (alone ? links_.front() : *far)->facts()->launcher_address;
}

std::unique_ptr<RoleProcess> SshBackend::start(const ProcessStart& start) {
  const auto host = std::ranges::find(names_, start.host);
  RETORT_CHECK(host != names_.end()) << "a process is placed on no host";
  return links_[static_cast<size_t>(host - names_.begin())]->start(start);
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
