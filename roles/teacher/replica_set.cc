#include "roles/teacher/replica_set.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace retort::roles {
namespace {

// All replicas are looked at again after this time, whatever is waited for.
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

  // A replica that is up again may be a new process, whose files may have been changed. It is asked
  // what it serves before it gets requests, and nobody waits here for its answer.
  if (!standing.asked) standing.asked = options_.ask(options_.replicas[replica]);
  if (!standing.asked->ready()) return false;
  try {
    options_.check(options_.replicas[replica], standing.asked->get());
  } catch (const Error& error) {
    standing.asked.reset();
    // A replica of another model will not become the right one. After any other error it is asked
    // again at the next look.
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
    // The changes are counted before the look at the replicas, so that one in between ends the wait
    // at once.
    const uint64_t seen = options_.links ? options_.links->changes() : 0;
    if (const auto found = choose(preferred)) return found;
    if (!options_.links || deadline.expired()) return std::nullopt;
    wait_for_news(seen, deadline);
  }
}

// Waits for the answer of a replica that is back, or else for one to come back.
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
  // Requests that were sent before a loss report it late. Their epoch is old, and must not take
  // down a replica that has come back since.
  if (standing.lost || standing.epoch != epoch) return;
  standing.lost = true;
  ++standing.epoch;
}

}  // namespace retort::roles
