// What a generator draws with: an engine and its weights, in this process or in another one.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/generation/request.h"
#include "roles/generator/methods.h"

namespace retort::roles {

struct FinishedSample {
  uint64_t request = 0;  // as SampleBackend::submit numbered it
  int64_t index = 0;     // of the completion in its request: prompt by prompt, G of each
  models::Completion completion;
  // Set: the engine gave the whole request up, and nothing more of it comes. Then there is no index
  // and no completion.
  std::exception_ptr error{};
};

// Draws samples, scores tokens and takes over weights for a Generator, which keeps the requests of
// its callers and decides what happens when. ReplicaEngine is one; another speaks for an engine
// that draws by itself, in another process.
//
// Use: on the first rank, in any order but for what stands in one line:
//
//   submit, step and finished until all samples of it came       many requests at a time
//   submit, cancel
//   score
//   stage ..., check, apply or uncheck                           apply: no request is unfinished
//
// Bits: what is drawn for a request depends on it and on the weights in use alone, not on when and
//   beside which others it is submitted.
// Errors: of submit, score, stage and check: of this call alone; the backend goes on. kCollective
//   and kTimeout, and any error of the others, say that it is of no use any more: its process ends.
// Deadlines: no call waits for longer than the backend's own timeouts.
// Ranks: one, unless a backend says more; those of one replica. Its first rank decides and answers,
//   the others do with follow() what it does. Weights arrive at each rank by itself.
// Threads: compute; stage() on another one.
class SampleBackend {
 public:
  SampleBackend() = default;
  virtual ~SampleBackend() = default;
  SampleBackend(const SampleBackend&) = delete;
  SampleBackend& operator=(const SampleBackend&) = delete;

  // Describes the model, the weights and this rank; `name` is left to the generator.
  virtual GeneratorInfo info() const = 0;
  // The version of the weights in use.
  virtual uint64_t weight_version() const = 0;

  // Takes a request that check_request accepts; returns its number, from 1, never used again. The
  // error says what is wrong with it.
  virtual uint64_t submit(const GenerateRequest& request) = 0;
  // A piece of the work on what is submitted, a forward pass for example: between two pieces the
  // generator handles calls. An engine that draws by itself is waited for here, until something of
  // it arrives or some milliseconds are over. False, at once, when nothing is unfinished.
  virtual bool step() = 0;
  // The samples that were finished since the last call, each once, in whatever order.
  virtual std::vector<FinishedSample> finished() = 0;
  // Nothing more of this request comes from finished(), even if the engine draws on for a while.
  // Nothing, if it is finished already.
  virtual void cancel(uint64_t request) = 0;
  // Log-probabilities, under the weights in use, of the tokens after the first of each sequence.
  virtual std::vector<std::vector<float>> score(const ForwardRequest& request) = 0;

  // Takes a bucket of the peer `from`, beside the weights in use. On a thread of its own, whatever
  // the compute thread does meanwhile; one call at a time. kUnavailable between check() and
  // apply() or uncheck(), kCorrupt and kMismatch as WeightStaging::add.
  virtual void stage(WeightBucket bucket, const std::string& from) = 0;
  // A bucket that is staged, for another replica that lacks it; its origin is the peer that pushed
  // it. On any thread, also while one is staged. None: it is not there, or this backend keeps none.
  virtual std::optional<WeightBucket> staged_bucket(uint64_t /*version*/, int64_t /*sender*/,
                                                    int64_t /*index*/) const {
    return std::nullopt;
  }
  virtual bool has_staged() const = 0;
  // Throws away what is staged and not checked of peers that are not `connected`, which is asked
  // while no bucket can be staged: one whose sender connected later stays.
  virtual void forget_staged(const std::function<std::set<std::string>()>& connected) = 0;
  // Checks that all of these weights are there, undamaged, on every rank, and returns their
  // checksum (weights_checksum). From then on no rank takes buckets.
  virtual uint64_t check(const CommitWeights& commit) = 0;
  // What was checked is in use on return: every token of later requests is drawn with it.
  virtual void apply() = 0;
  // It is not committed after all: it stays staged, and buckets are taken again.
  virtual void uncheck() = 0;

  virtual bool leads() const { return true; }
  // On the first rank, when there is nothing to do: so that the others do not wait for longer than
  // their group's timeout. And when it is over.
  virtual void idle() {}
  virtual void stop() {}
  // On the others: takes part in one call of the first rank's. False after stop().
  virtual bool follow() {
    RETORT_CHECK(false) << "a backend of one rank has nobody to follow";
    return false;
  }

  // What else there is to say in the log when it is over: "; ..." or nothing.
  virtual std::string summary() const { return {}; }
};

}  // namespace retort::roles
