#include "roles/generator/weight_relay.h"

#include <algorithm>
#include <utility>

namespace retort::roles {
namespace {

PassReply refused(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& reason) {
    return {.passed = false, .why = reason.what()};
  }
}

}  // namespace

Future<PassReply> WeightRelay::pass(const PassWeights& request,
                                    std::optional<WeightBucket> bucket) {
  Promise<PassReply> reply;
  Future<PassReply> future = reply.future();
  if (!bucket) {
    reply.set_value({.passed = false, .why = "it is not staged here"});
    return future;
  }

  when_connected(request, [&agent = agent_, to = request.to, reply,
                           bucket = std::move(*bucket)](const std::exception_ptr& error) mutable {
    if (error) {
      reply.set_value(refused(error));
      return;
    }
    // A peer whose window is full of what it has not taken must not hold this thread, which has
    // other buckets to pass on.
    agent.call(to, kWeightsBucket, bucket, {.wait_for_credit = false})
        .on_outcome([reply](Outcome<Empty> outcome) mutable {
          reply.set_value(outcome.error ? refused(outcome.error)
                                        : PassReply{.passed = true, .why = {}});
        });
  });
  return future;
}

void WeightRelay::when_connected(const PassWeights& request, Then then) {
  const std::vector<std::string> peers = agent_.peers();
  if (std::find(peers.begin(), peers.end(), request.to) != peers.end()) return then(nullptr);

  // A peer is dialed once at a time. What comes meanwhile for it waits for the same dial.
  {
    std::lock_guard lock(waiting_->mutex);
    std::vector<Then>& line = waiting_->then[request.to];
    line.push_back(std::move(then));
    if (line.size() > 1) return;
  }

  // What waits leaves the map before it runs without the lock, because it may ask for the same peer
  // again.
  const auto go_on = [waiting = waiting_, to = request.to](const std::exception_ptr& error) {
    std::vector<Then> line;
    {
      std::lock_guard lock(waiting->mutex);
      line.swap(waiting->then[to]);
      waiting->then.erase(to);
    }
    for (Then& next : line)
      next(error);
  };

  // The dial may be refused at once; then all that waits hears of it.
  try {
    agent_
        .start_connect(request.to, request.address, Deadline::after(kConnect),
                       rpc::Agent::Attempts::kAgain)
        .on_outcome([go_on](Outcome<Empty> outcome) { go_on(outcome.error); });
  } catch (const Error&) {
    go_on(std::current_exception());
  }
}

}  // namespace retort::roles
