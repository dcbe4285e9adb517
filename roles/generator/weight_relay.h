// The replica's end of a push that goes from replica to replica (weight_broadcast.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "roles/generator/methods.h"
#include "rpc/agent.h"

namespace retort::roles {

// Sends buckets that are staged here to other replicas, and connects to them first.
//
// Memory: none of its own: a message reads what is staged, and what is staged is never written to.
// Deadlines: an attempt to connect has kConnect; a bucket has rpc.timeout.
// Threads: any but a loop. Nothing here waits for a peer, nor for credit: a
//   peer whose window is full lets the answer be at once that the bucket was not passed on.
class WeightRelay {
 public:
  static constexpr std::chrono::seconds kConnect{10};

  // The agent outlives this object and what it has begun.
  explicit WeightRelay(rpc::Agent& agent) : agent_(agent) {}
  WeightRelay(const WeightRelay&) = delete;
  WeightRelay& operator=(const WeightRelay&) = delete;

  // `bucket`: what is asked for, if it is there. The future has a value, whatever happens.
  Future<PassReply> pass(const PassWeights& request, std::optional<WeightBucket> bucket);

 private:
  // Continues once the peer is connected, or with the error why it is not.
  using Then = std::function<void(const std::exception_ptr&)>;
  struct Waiting {
    std::mutex mutex;
    std::map<std::string, std::vector<Then>> then;  // by peer, while it is dialed
  };
  void when_connected(const PassWeights& request, Then then);

  rpc::Agent& agent_;
  const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();  // shared with the dials
};

}  // namespace retort::roles
