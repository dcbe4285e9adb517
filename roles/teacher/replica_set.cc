#include "roles/teacher/replica_set.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace retort::roles {
namespace {

// Until another look at all replicas, whatever is waited for.
constexpr std::chrono::milliseconds kBetweenLooks{100};

}  // namespace

std::vector<std::string> TeacherReplica::peers() const {
  std::vector<std::string> all{leader};
  for (const std::string& holder : holders)
    if (std::find(all.begin(), all.end(), holder) == all.end()) all.push_back(holder);
  return all;
}

ReplicaSet::ReplicaSet(Options options)
    : options_(std::move(options)), standings_(options_.replicas.size()) {}

std::optional<size_t> ReplicaSet::choose(size_t preferred) {
  for (size_t i = 0; i < size(); ++i) {
    const size_t replica = (preferred + i) % size();
    if (can_be_asked(replica)) return replica;
  }
  return std::nullopt;
}

bool ReplicaSet::can_be_asked(size_t replica) {
  Standing& standing = standings_[replica];
  if (!standing.lost) return true;
  const auto peers = options_.replicas[replica].peers();
  const bool up = options_.links &&
                  std::all_of(peers.begin(), peers.end(),
                              [&](const std::string& peer) { return options_.links->up(peer); });
  if (!up) {
    standing.asked.reset();
    return false;
  }

  // It may be a new process, whose files may have been changed.
  if (!standing.asked) standing.asked = options_.ask(options_.replicas[replica]);
  if (!standing.asked->ready()) return false;
  try {
    options_.check(options_.replicas[replica], standing.asked->get());
  } catch (const Error& error) {
    standing.asked.reset();
    if (error.code() == ErrorCode::kMismatch) throw;
    return false;
  }
  RETORT_LOG(kInfo) << options_.replicas[replica].leader << " answers again";
  standing.asked.reset();
  standing.lost = false;
  return true;
}

std::optional<size_t> ReplicaSet::wait(size_t preferred, Deadline deadline) {
  for (;;) {
    const uint64_t seen = options_.links ? options_.links->changes() : 0;
    if (const auto found = choose(preferred)) return found;
    if (!options_.links || deadline.expired()) return std::nullopt;
    wait_for_news(seen, deadline);
  }
}

// For the answer of a replica that came back, or for one that comes back.
void ReplicaSet::wait_for_news(uint64_t seen, Deadline deadline) const {
  const Deadline look(std::min(deadline.time(), Deadline::after(kBetweenLooks).time()));
  const auto asked =
      std::find_if(standings_.begin(), standings_.end(),
                   [](const Standing& standing) { return standing.asked.has_value(); });
  if (asked != standings_.end())
    asked->asked->wait(look);
  else
    options_.links->wait_change(seen, look);
}

void ReplicaSet::lost(size_t replica, uint64_t epoch) {
  Standing& standing = standings_[replica];
  if (standing.lost || standing.epoch != epoch) return;
  standing.lost = true;
  ++standing.epoch;
}

}  // namespace retort::roles
