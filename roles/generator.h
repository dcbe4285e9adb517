// The generator role: a decoder that draws samples for others and takes over new weights between two requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "models/decoder.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "roles/generator_methods.h"
#include "roles/weight_staging.h"
#include "rpc/agent.h"

namespace retort::roles {

// Serves requests in the order in which they came, each drawn with exactly the weights that it names. Weights arrive while samples
// are drawn; a commit waits until the requests for the weights in use are done (or, with abort, ends them), so no completion
// sees two versions. Threads: compute only. Collectives: none (one rank for each replica).
class Generator {
 public:
  Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer, models::EngineOptions options);
  ~Generator();

  // The generator must outlive the agent's handlers.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue);
  // One forward of the engine, or one step of the queue; false when there is nothing to do.
  bool work();

  uint64_t weight_version() const { return version_; }
  int64_t requests_served() const { return served_; }
  int64_t tokens_drawn() const { return tokens_; }

 private:
  using Key = std::pair<std::string, uint64_t>;  // caller, request id
  struct Job {
    GenerateRequest request;
    std::vector<std::vector<int32_t>> prompts;
    uint64_t engine_id = 0;
    std::chrono::steady_clock::time_point started;
    std::optional<rpc::Outcome<Samples>> outcome;        // done, not collected yet
    std::optional<rpc::Promise<Samples>> collector;      // collected, not done yet
    std::shared_ptr<const std::atomic<bool>> cancelled;  // of the collector
  };
  struct Commit {
    CommitWeights request;
    uint64_t checksum;
    rpc::Promise<CommitReply> reply;
  };

  GeneratorInfo info() const;
  void submit(GenerateRequest request, const std::string& caller);
  rpc::Future<Samples> collect(uint64_t request_id, const rpc::CallContext& context);
  Payload score(const ForwardRequest& request) const;
  rpc::Future<CommitReply> commit(CommitWeights request);
  void start(const Key& key);
  void finish(const Key& key, rpc::Outcome<Samples> outcome);
  void fail(const Key& key, ErrorCode code, const std::string& message);
  Samples samples_of(const Job& job);
  void apply_commit();
  void forget_cancelled();

  std::string name_;
  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  models::Engine engine_;
  WeightStaging staging_;
  uint64_t version_ = 0;
  std::map<Key, Job> jobs_;
  std::deque<Key> waiting_;  // in order of arrival
  std::optional<Key> active_;
  std::optional<Commit> commit_;
  int64_t served_ = 0, tokens_ = 0;
};

}  // namespace retort::roles
