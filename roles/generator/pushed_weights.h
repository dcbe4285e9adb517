// What a rank of the trainer pushed last, for replicas that come back without it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "roles/generator/methods.h"
#include "rpc/agent.h"
#include "rpc/peer_links.h"

namespace retort::roles {

// A replica that was lost may come back as a new process, with the weights of its files, or as the
// same one, which may have missed a part of a push. Either way a thread of this object sends it
// what this rank pushed last, and, on the rank that commits, commits it again until the replica has
// all of it from all senders.
//
// Memory: one more copy of what this rank sends to one replica, in the memory it is sent from.
// Threads: the trainer's, and one of its own.
class PushedWeights {
 public:
  // Buckets on their way to one peer.
  static constexpr size_t kOnTheirWay = 8;
  struct Options {
    std::vector<std::string> peers;  // ranks of all replicas, as in GeneratorClient::Options
    int64_t tp = 1;
    std::string base_weights;              // GeneratorInfo's, also of a replica that comes back
    Duration timeout{120'000};             // of one bucket, of one question
    Duration generation_timeout{600'000};  // of a commit, which waits for samples in work
  };
  // `links` keeps all of `peers`; agent and links outlive this object.
  PushedWeights(rpc::Agent& agent, rpc::PeerLinks& links, Options options);
  ~PushedWeights();
  PushedWeights(const PushedWeights&) = delete;
  PushedWeights& operator=(const PushedWeights&) = delete;

  // Nothing is restored while the lock is held: for a push. What is being restored gives way, and
  // begins anew later: a peer that does not answer must not keep the others from the push.
  std::unique_lock<std::mutex> pause();
  // The sealed buckets of each rank of a replica. With the lock of pause() held.
  void keep(uint64_t version, std::vector<std::vector<WeightBucket>> buckets);
  // What keep() was given last, whose memory the next push uses again; nothing is kept until then.
  // With the lock of pause() held.
  std::vector<std::vector<WeightBucket>> take();
  // What commits them, on the rank that does.
  void keep(const CommitWeights& commit);

  // This peer may have missed a part of the last push; this replica's commit did not come through.
  void restore(const std::string& peer);
  void commit_again(int64_t replica);
  // commit_again(), which may also be called when this object is gone. Any thread.
  std::function<void(int64_t replica)> committer() const;
  // Throws what makes restoring impossible: weights that a generator refuses.
  void check() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Self {
    std::mutex mutex;  // before mutex_
    PushedWeights* alive = nullptr;
  };
  struct Kept {
    uint64_t version = 0;
    std::vector<std::vector<WeightBucket>> buckets;  // of each rank of a replica
    std::optional<CommitWeights> commit;
  };
  // A commit that was sent again, or waits to be.
  struct Commit {
    uint64_t version = 0;
    std::optional<Future<CommitReply>> reply;
    Clock::time_point next{};
  };

  void run();
  bool wait_for_work();
  void restore_next();
  void send_to(const std::string& peer);
  template <class T>
  T answer(Future<T> future);
  void send_buckets(const std::string& peer, const std::vector<WeightBucket>& buckets);
  void look_after_commits();
  bool still_to_commit(int64_t replica, Commit& commit);
  void fail(const Error& error);
  int64_t index_of(const std::string& peer) const;

  rpc::Agent& agent_;
  const Options options_;
  const std::shared_ptr<Self> self_ = std::make_shared<Self>();
  std::mutex sending_;          // before mutex_
  std::atomic<int> wanted_{0};  // by whom pause() waits for
  std::optional<Kept> kept_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::map<std::string, Clock::time_point> to_restore_;  // when, at the earliest
  std::set<int64_t> to_commit_;                          // replicas
  std::optional<Error> failed_;
  bool stopping_ = false;
  std::map<int64_t, Commit> commits_;  // of replicas; the thread's own
  std::function<void()> end_listening_;
  std::thread thread_;
};

}  // namespace retort::roles
