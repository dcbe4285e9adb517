// How the buckets of one push get from one sender to all replicas without the sender's link
// carrying them once for each.
//
//   sender --- weights.bucket ---> replica 0 --- weights.bucket ---> replicas 2, 3 ---> ...
//          --- weights.bucket ---> replica 1 --- weights.bucket ---> replicas 4, 5 ---> ...
//          --- weights.pass -----> a replica that has bucket i: "pass it on to replica 2"
//
//   who waits                  for what                         at most
//   a bucket, to a replica     the replica before it has it     until that one is slow or lost
//   the sender                 all replicas have all of it      until the others have waited enough
//   a replica that passes on   nobody: the call is the answer
//
// The ranks of equal place of all replicas hold the same part of the model, so they make a tree:
// rank r of replica n gets what rank r of replica (n - kFanOut) / kFanOut has, the first kFanOut
// get it from the sender. The sender hears of each bucket that arrived, so it alone decides who
// passes what on, and it can always send a bucket itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "roles/generator/methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Of one push, of one sender.
//
// Use: sealed() for each bucket in order, advance() in between; then wait_all(). missed() must be
//   sent all of it again when it is back.
// Bytes: M is what one replica gets of this sender, n the number of replicas. The sender sends
//   min(n, kFanOut) M, replica i sends min(kFanOut, max(0, n - kFanOut (i + 1))) M, and each gets
//   M; without `pass_on` the sender sends n M. Besides that the sender sends M once more for each
//   replica whose turn it was to get it from one that is lost, slow or does not have it any more,
//   and some hundred bytes for each bucket that a replica passes on.
// Slow: a bucket takes too long if it takes longer than `patience` and than four times the longest
//   one so far. Then who should have got it from another replica gets it from the sender; and those
//   after a replica that is slow to take it from the sender get it from the sender. Nothing is
//   taken back: what arrives twice is there once (WeightStaging::add).
// Left behind: with `leave_behind`, once more than a half have all of it the others have as long
//   again, and `patience`. Of two replicas nobody can say which is the slow one: both are waited
//   for. Nor is credit waited for then: one whose window is full of earlier pushes is asked again.
// Errors: of a replica that `passes` does not know: thrown. Others make it one of missed().
// Threads: one, which may not be a loop.
class WeightBroadcast {
 public:
  using Buckets = std::vector<std::vector<WeightBucket>>;  // of each rank of a replica
  static constexpr size_t kFanOut = 2;
  static constexpr size_t kOnTheirWay = 8;  // buckets to one peer at a time

  struct Peer {
    std::string name;
    size_t rank = 0;  // of its replica
  };
  struct Options {
    uint64_t version = 0;
    int64_t sender = 0;
    // All connected; of those of a rank earlier ones pass on to later ones.
    std::vector<Peer> peers;
    bool pass_on = true;  // else the sender sends to all of them
    bool leave_behind = false;
    Duration timeout{120'000};  // of one bucket
    Duration patience{2'000};
    std::function<bool(const Error&)> passes;
  };
  // `buckets`: all of them, outlives this object; those are read that sealed() was called for.
  WeightBroadcast(rpc::Agent& agent, Options options, const Buckets& buckets);
  WeightBroadcast(const WeightBroadcast&) = delete;
  WeightBroadcast& operator=(const WeightBroadcast&) = delete;

  // The next bucket for this rank of replicas may leave.
  void sealed(size_t rank);
  // Does what follows from what has arrived. Does not wait for anybody, but without `leave_behind`
  // for credit if nothing is on its way to a peer.
  void advance() { advance(false); }
  // Waits until at least so many buckets of this rank are with all that are not lost.
  void wait_for(size_t rank, size_t buckets);
  void wait_all();

  // So many buckets of this rank, from the first one on, are with all that are not lost.
  size_t everywhere(size_t rank) const;
  // Lost or left behind.
  const std::vector<std::string>& missed() const { return missed_; }
  // Whoever was too slow to pass on to others, or was lost or left behind.
  const std::set<std::string>& slow() const { return slow_; }

 private:
  using Clock = std::chrono::steady_clock;
  // One attempt to bring a bucket to a peer.
  struct Transfer {
    uint64_t attempt = 0;
    std::optional<size_t> from;  // the member that passes it on; none: the sender
    bool without_credit = false;
    Clock::time_point since;
  };
  struct Member {
    std::string name;
    size_t rank = 0;
    std::optional<size_t> parent;  // none: the sender
    std::vector<size_t> children;
    std::vector<bool> there;  // of each bucket
    size_t num_there = 0, first_missing = 0;
    std::map<size_t, Transfer> under_way;
    bool gone = false, retired = false;
    bool refused = false;  // the last that was sent to it, though there was credit
    std::optional<Clock::time_point> again;  // it had no room: when it is asked again

    bool complete() const { return num_there == there.size(); }
  };
  struct Event {
    size_t member = 0, bucket = 0;
    uint64_t attempt = 0;
    bool arrived = false;
    std::exception_ptr error;  // of the call; null: somebody could not pass it on
  };
  // What calls report, on whatever thread; outlives this object while a call is open.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable filled;
    std::vector<Event> events;

    void put(Event event);
  };

  void advance(bool wait);
  void serve(size_t number);
  std::optional<size_t> next_for(const Member& member) const;
  void start(size_t number, size_t bucket);
  void take(const Event& event);
  void arrived(size_t number, size_t bucket);
  void fail(size_t number, const Transfer& transfer, const std::exception_ptr& error);
  void make_direct(size_t number);
  void retire(size_t number);
  Clock::duration longest_look() const;
  void ask_again();
  void look_for_slow();
  bool leave_behind();

  rpc::Agent& agent_;
  const Options options_;
  const Buckets& buckets_;
  std::vector<size_t> sealed_;  // of each rank of a replica
  std::vector<Member> members_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  const Clock::time_point start_ = Clock::now();
  Clock::duration longest_{0};                    // transfer that arrived
  std::optional<Clock::duration> most_complete_;  // after so long more than a half were
  size_t complete_ = 0, gone_ = 0;
  uint64_t attempts_ = 0;
  std::vector<std::string> missed_;
  std::set<std::string> slow_;
};

}  // namespace retort::roles
