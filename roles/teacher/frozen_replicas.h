// The replicas of a role that holds a frozen model, as the student knows them: what they are, which
// can be asked, and where a request goes whose replica is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/text/tokenizer.h"
#include "roles/teacher/methods.h"
#include "roles/teacher/replica_set.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::roles {

// Threads: one at a time.
class FrozenReplicas {
 public:
  struct Options {
    std::string role;                      // "teacher"
    std::vector<TeacherReplica> replicas;  // already connected, leaders and holders
    std::chrono::milliseconds timeout{120'000};
    // Connects again to what was lost; outlives this object. Null: a lost replica stays lost.
    rpc::PeerLinks* links = nullptr;
    std::chrono::milliseconds patience{0};  // with links: for how long all replicas may be away
    bool weights_fingerprint = false;       // ask for TeacherInfo::weights_fingerprint
    // Says why both must number their tokens alike, for the message to whose do not.
    std::string why_same_ids;
  };
  // Handshake with every replica: fingerprints over the ids both tokenizers know must agree
  // (kMismatch showing both), replicas must agree with each other, served ones in the numbers that
  // they give (TeacherInfo::numbers; kMismatch naming both). `student`: null for a role that
  // is asked in words, which has no ids to agree on.
  FrozenReplicas(rpc::Agent& agent, Options options, const models::Tokenizer* student);
  FrozenReplicas(const FrozenReplicas&) = delete;
  FrozenReplicas& operator=(const FrozenReplicas&) = delete;

  const TeacherInfo& info() const { return info_; }
  const std::string& role() const { return options_.role; }
  size_t size() const { return options_.replicas.size(); }
  const TeacherReplica& operator[](size_t replica) const { return options_.replicas[replica]; }
  // The same as in ReplicaSet.
  std::optional<size_t> choose(size_t preferred) { return set_.choose(preferred); }
  uint64_t epoch(size_t replica) const { return set_.epoch(replica); }

  // That of a request for which choose() found none: whoever waits for its answer calls next().
  // One that is back may not be the same model, so nothing is sent unasked.
  Error none_now() const;

  // A request that was sent, and how often the same replica got it again.
  struct Sent {
    size_t replica = 0;
    uint64_t epoch = 0;
    int repeats = 0;
  };
  // Returns where a request goes that failed with `error`: to the same replica, which dropped the
  // answer, or to another one, or to one that comes back, which is waited for.
  // Errors: `error` itself, with the replica as context, if it goes nowhere; kPeerLost when no
  // replica is left or came back within `patience`; kMismatch when one came back as another model.
  size_t next(const Error& error, Sent& sent, uint64_t request);
  // Ends the wait of next(), and all later ones, with kCancelled. Any thread.
  void stop() { stopped_ = true; }

 private:
  Future<TeacherInfo> ask(const TeacherReplica& replica);
  void handshake(const TeacherReplica& replica);
  void check_tokenizers(const std::string& peer, const TeacherInfo& info) const;
  // One that can be asked, waited for within `patience`; stop() ends it.
  std::optional<size_t> wait(size_t preferred);
  void check_same_model(const TeacherReplica& replica, const TeacherInfo& info) const;
  void check_same_numbers(const TeacherInfo& info) const;

  rpc::Agent& agent_;
  Options options_;
  std::optional<models::Tokenizer> student_tokenizer_;
  TeacherInfo info_;
  std::map<std::string, std::string> files_;  // TeacherInfo::files of each leader
  ReplicaSet set_;
  std::atomic<bool> stopped_{false};
};

}  // namespace retort::roles
