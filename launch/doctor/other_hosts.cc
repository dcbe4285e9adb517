#include "launch/doctor/other_hosts.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <map>
#include <utility>

#include "launch/doctor/host_answer.h"
#include "launch/doctor/inputs.h"
#include "launch/placement/placement.h"
#include "launch/run_folder/run_folder.h"
#include "launch/run_folder/run_mark_trial.h"
#include "launch/run_folder/scratch_folder.h"
#include "launch/ssh/ssh_backend.h"
#include "launch/yaml/resolved_yaml.h"

namespace retort::launch::doctor {
namespace {

namespace fs = std::filesystem;

// How long all checks of a host may take, with engines that do not answer.
constexpr std::chrono::milliseconds kExamination{120'000};
constexpr std::chrono::milliseconds kVisitTick{100};

Finding named(Finding finding, const std::string& host, const std::string& check) {
  finding.host = host;
  finding.check = check;
  return finding;
}

std::string action_for(ErrorCode code) {
  if (code == ErrorCode::kMismatch)
    return "copy the same program to all hosts; launch.ssh.program says where it is there";
  return "`ssh HOST true` must answer without a question, launch.ssh.program be there, and "
         "output_dir be the same folder on all hosts (docs/hosts.md)";
}

// One host: it is reached, asked, and has answered; or is lost on the way.
class Visit {
 public:
  Visit(const recipes::Recipe& recipe, std::map<std::string, int64_t> ranks,
        HostLinkOptions options)
      : recipe_(recipe),
        ranks_(std::move(ranks)),
        name_(options.host.host),
        link_(std::move(options)) {}

  const std::string& name() const { return name_; }
  HostLink& link() { return link_; }
  bool done() const { return done_; }
  const std::optional<HostFacts>& facts() const { return link_.facts(); }
  const std::vector<Finding>& findings() const { return findings_; }
  const std::map<std::string, std::string>& prints() const { return prints_; }
  void poll_for(std::vector<pollfd>& entries) const {
    if (!done_) link_.poll_for(entries);
  }

  void work() {
    if (done_) return;
    try {
      link_.work();
      // An answer that came before the connection ended counts, so it is taken before the link is
      // checked.
      if (link_.examined()) return take(decode_answer(*link_.examined()));
      link_.check();
      if (link_.facts() && asked_ns_ == 0) ask();
      if (deadline_.expired())
        throw Error(ErrorCode::kTimeout, "it was reached, but its checks take too long");
    } catch (const Error& error) {
      findings_.push_back(named(problem(error.message(), action_for(error.code())), name_, "host"));
      done_ = true;
    }
  }

 private:
  void ask() {
    const auto& where = recipe_.launch.rendezvous.address;
    const bool is_said = recipe_.rpc.bind != rpc::RpcOptions().bind;
    const HostQuestion question{.recipe = resolved_yaml(recipe_),
                                .ranks = ranks_,
                                .bind = is_said ? recipe_.rpc.bind : link_.facts()->address,
                                .rendezvous = where.value_or(link_.facts()->launcher_address)};
    asked_ns_ = wall_clock_ns();
    link_.examine(encode_question(question));
  }

  void take(HostAnswer answer) {
    const ClockDifference clock = clock_difference(asked_ns_, answer, wall_clock_ns());
    findings_.push_back(named(fine("reached at " + link_.facts()->address +
                                   "; the same program, and the same output_dir"),
                              name_, "host"));
    findings_.push_back(named(judge_clock(clock), name_, "clock"));
    for (Finding& finding : answer.findings) {
      const std::string check = finding.check;
      findings_.push_back(named(std::move(finding), name_, check));
    }
    prints_ = std::move(answer.prints);
    done_ = true;
  }

  const recipes::Recipe& recipe_;
  const std::map<std::string, int64_t> ranks_;
  const std::string name_;
  HostLink link_;
  const Deadline deadline_ = Deadline::after(kExamination);
  int64_t asked_ns_ = 0;
  bool done_ = false;
  std::vector<Finding> findings_;
  std::map<std::string, std::string> prints_;
};

void visit_all(std::list<Visit>& visits, const SignalCatcher& signals) {
  while (!std::ranges::all_of(visits, &Visit::done)) {
    std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}};
    for (const Visit& visit : visits)
      visit.poll_for(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kVisitTick.count()));
    for (Visit& visit : visits)
      visit.work();
    if (signals.any()) throw Error(ErrorCode::kCancelled, "stopped while hosts were asked");
  }
}

}  // namespace

OtherHosts examine_hosts(const recipes::Recipe& recipe, const SignalCatcher& signals) {
  OtherHosts result;
  const fs::path run_folder = run_folder_of(recipe);
  const RunMarkTrial mark(run_folder);
  const std::string own = "output_dir";
  if (mark.error())
    result.findings.push_back(
        named(problem(mark.error()->message(),
                      "until the folder is free and can be written, no host can prove that it sees "
                      "it"),
              own, "shared folder"));
  if (mark.text().empty()) return result;

  // All hosts are visited at once, and each visit has a deadline of its own.
  const ScratchFolder scratch;
  const Placement placement = place_processes(recipe);
  std::list<Visit> visits;
  EndOfLinks end;
  size_t host = 0;
  for (HostLinkOptions& link : links_to_hosts(recipe, run_folder, mark.text(), scratch.path()))
    end.add(visits.emplace_back(recipe, placement.ranks_on(host++), std::move(link)).link());
  visit_all(visits, signals);

  std::map<std::string, std::map<std::string, std::string>> prints;
  for (const Visit& visit : visits) {
    for (const Finding& finding : visit.findings())
      result.findings.push_back(finding);
    if (visit.facts() && !result.launcher_address)
      result.launcher_address = visit.facts()->launcher_address;
    if (!visit.prints().empty()) prints[visit.name()] = visit.prints();
  }
  for (Finding& finding : compare_prints(prints))
    result.findings.push_back(named(std::move(finding), "all", "inputs"));
  return result;
}

}  // namespace retort::launch::doctor
