// The trainer's end of one request: its samples as they end.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/future.h"
#include "roles/generator/samples.h"
#include "rpc/agent.h"

namespace retort::roles {

// Gets each completion of a request once, as soon as it is here, in whatever order. Runs on the
// agent's loop thread, so it must not block, nor throw.
using SampleListener = std::function<void(const IndexedCompletion&)>;

// What has arrived of one request. A request that was lost with its generator is drawn again, with
// the same weights: what had arrived before stays, and does not come to the listener again.
// Threads: any.
class SampleStream {
 public:
  SampleStream(ExpectedSamples expected, SampleListener listener)
      : expected_(std::move(expected)),
        listener_(std::move(listener)),
        completions_(static_cast<size_t>(expected_.completions)) {}

  // Checks an answer of `generator` and takes it. What check_samples refuses is kept, and thrown by
  // whole() and here.
  void take(const Samples& part, const std::string& generator);
  // All completions in their order, as an answer of the generator that drew the last of them: once,
  // after the future of collect_samples is there. kCorrupt unless every one has arrived.
  Samples whole();

  const ExpectedSamples& expected() const { return expected_; }

 private:
  const ExpectedSamples expected_;
  const SampleListener listener_;
  std::mutex mutex_;
  std::vector<std::optional<IndexedCompletion>> completions_;
  std::string generator_;  // of the last part
  double seconds_ = 0;     // that it took to draw
  std::exception_ptr refused_;
};

// Asks `generator` for the samples of a request that stands there, again and again until `stream`
// has taken the last, then tells it that they are here. Returns at once; may be called on a loop
// thread. `timeout`: of the whole request, from when it is begun to be drawn.
//
// Errors of the future: Agent::call's and generator.collect's. What the stream refuses ends it
//   without one.
Future<Empty> collect_samples(rpc::Agent& agent, const std::string& generator,
                              std::shared_ptr<SampleStream> stream,
                              std::chrono::milliseconds timeout);

}  // namespace retort::roles
