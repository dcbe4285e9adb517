// The generator role: a decoder that draws samples for others and takes over new weights between
// two requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "models/decoder.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "roles/generator/methods.h"
#include "roles/generator/replica_engine.h"
#include "rpc/agent.h"

namespace retort::roles {

// Serves requests in the order in which they came, each drawn with exactly the weights that it
// names. Weights arrive while samples are drawn; a commit waits until the requests for the weights
// in use are done (or, with abort, ends them), so no completion sees two versions. A replica of
// several ranks has one door: its first rank takes requests and commits, and the others do with it
// what it does (ReplicaEngine); weights arrive at each rank. When a rank is lost, the others fail
// with kCollective or kTimeout: the replica ends. Threads: compute only. Collectives:
// ReplicaEngine's.
class Generator {
 public:
  // Several ranks: the decoder's placement says so; `name` is that of the process, "generator/3".
  Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
            models::EngineOptions options);
  ~Generator();

  bool leads() const { return replica_.leads(); }
  // Registers the methods that this rank answers. The generator must outlive the agent's handlers.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue);
  // On the first rank, again and again: one forward of the engine, or one step of the queue; false
  // when there is nothing to do.
  bool work();
  // On the first rank, at the end: lets the others end.
  void stop() { replica_.stop(); }
  // On the other ranks: does what the first does, and runs the jobs of `queue` in between, until it
  // stops. `tick` after each call.
  void follow(rpc::HandlerQueue& queue, const std::function<void()>& tick = {});

  uint64_t weight_version() const { return replica_.weight_version(); }
  int64_t requests_served() const { return served_; }
  int64_t tokens_drawn() const { return tokens_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<std::string, uint64_t>;  // caller, request id
  struct Job {
    GenerateRequest request;
    uint64_t engine_id = 0;
    std::chrono::steady_clock::time_point started;
    std::optional<Outcome<Samples>> outcome;             // done, not collected yet
    std::optional<Promise<Samples>> collector;           // collected, not done yet
    std::shared_ptr<const std::atomic<bool>> cancelled;  // of the collector
  };
  struct Commit {
    CommitWeights request;
    uint64_t checksum;
    Promise<CommitReply> reply;
  };

  GeneratorInfo info() const;
  void submit(GenerateRequest request, const std::string& caller);
  Future<Samples> collect(uint64_t request_id, const rpc::CallContext& context);
  Payload score(const ForwardRequest& request);
  Future<CommitReply> commit(CommitWeights request);
  void start(const Key& key);
  void finish(const Key& key, Outcome<Samples> outcome);
  void fail(const Key& key, ErrorCode code, const std::string& message);
  Samples samples_of(const Job& job);
  void apply_commit();
  void forget_cancelled();
  bool draw();
  bool begin_next();

  std::string name_;
  models::Tokenizer tokenizer_;
  ReplicaEngine replica_;
  std::map<Key, Job> jobs_;
  std::deque<Key> waiting_;  // in order of arrival
  std::optional<Key> active_;
  std::optional<Commit> commit_;
  Clock::time_point last_active_;
  int64_t served_ = 0, tokens_ = 0;
};

}  // namespace retort::roles
