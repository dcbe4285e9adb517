// Knows which replicas of a frozen role can be asked now.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "roles/teacher/methods.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::roles {

// The ranks of one replica that a student talks to, by their peer names.
struct TeacherReplica {
  std::string leader;  // "teacher/0"
  // of the last pipeline stage, in the order of tp; empty: the leader alone
  std::vector<std::string> holders;

  size_t size() const { return holders.empty() ? 1 : holders.size(); }
  const std::string& holder(size_t rank) const { return holders.empty() ? leader : holders[rank]; }
  // Leader and holders, each once.
  std::vector<std::string> peers() const;
};

// A replica that is lost is asked again once it is connected again and was found to be what it was.
// Without links a lost one stays lost. Threads: compute.
class ReplicaSet {
 public:
  struct Options {
    std::vector<TeacherReplica> replicas;
    rpc::PeerLinks* links = nullptr;
    // Asks a replica that came back what it is; throws (kMismatch) when it is another model.
    std::function<Future<TeacherInfo>(const TeacherReplica&)> ask;
    std::function<void(const TeacherReplica&, const TeacherInfo&)> check;
  };
  explicit ReplicaSet(Options options);

  size_t size() const { return options_.replicas.size(); }
  const TeacherReplica& operator[](size_t replica) const { return options_.replicas[replica]; }

  // `preferred`, or the next one after it that can be asked; nullopt: none now. Errors: `check`'s.
  std::optional<size_t> choose(size_t preferred);
  // The same, and waits for one that comes back; nullopt: none by the deadline, or without links.
  std::optional<size_t> wait(size_t preferred, Deadline deadline);
  // Says that what was sent in `epoch` failed because the replica was lost. Forgotten if it came
  // back since.
  void lost(size_t replica, uint64_t epoch);
  // Returns how often the replica was lost.
  uint64_t epoch(size_t replica) const { return standings_[replica].epoch; }

 private:
  struct Standing {
    bool lost = false;
    uint64_t epoch = 0;
    std::optional<Future<TeacherInfo>> asked;  // what it is, since it came back
  };
  bool can_be_asked(size_t replica);
  void wait_for_news(uint64_t seen, Deadline deadline) const;

  Options options_;
  std::vector<Standing> standings_;
};

}  // namespace retort::roles
