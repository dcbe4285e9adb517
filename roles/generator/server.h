// The generator role: a decoder that draws samples for others and takes over new weights between
// two requests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/generation/engine.h"
#include "models/text/tokenizer.h"
#include "roles/generator/methods.h"
#include "roles/generator/request_table.h"
#include "roles/generator/sample_backend.h"
#include "roles/generator/weight_relay.h"
#include "roles/handler_thread.h"
#include "roles/served_role.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers generator.info, .submit, .collect and .score, weights.bucket, .pass and .commit.
//
//   remote calls, between two forward passes      work
//     submit     in the RequestTable              begin_due      those for the weights in use go to
//     collect    the caller waits there                          the backend, drawn together
//     commit     checked, then it waits           draw           one step of the backend
//                                                 apply_commit   when there is nothing to draw
//
// Buckets of weights are staged meanwhile, on each rank by a thread of their own, and passed on to
// other replicas by another one.
//
// Use: as every ServedRole. Between two forward passes the leader handles all calls that wait, for
//   kCallSlice at the most.
// Weights: a request is drawn with exactly the weights that it names. They arrive while samples are
//   drawn; a commit waits until the requests for the weights in use are done (or, with abort, ends
//   them), so no completion sees two versions.
// Bits: requests that wait are drawn together; each gets the bits that it gets alone, whatever is
//   handled between two steps (SampleBackend).
// Callers: what a caller that is gone has left here (requests, staged weights, a commit that waits)
//   is forgotten before the next forward pass. Gone is who is no longer connected, or submits as
//   another process of the same name; of a call that is not answered yet, also who cancelled it.
// Ranks: a replica of several is spoken to through its first rank, which takes requests and
//   commits; the others do with it what it does (SampleBackend). Weights arrive at each rank.
// Collectives: the backend's.
// Errors: when a rank is lost, the others fail with kCollective or kTimeout: the replica ends.
// Threads: compute; two of its own, which take buckets and pass them on, and end in the destructor.
class Generator final : public ServedRole {
 public:
  // For how long calls that wait are handled before the next forward pass.
  static constexpr std::chrono::milliseconds kCallSlice{20};

  // `name` is that of the process, "generator/3".
  Generator(std::string name, std::unique_ptr<SampleBackend> backend);
  // With a ReplicaEngine. Several ranks: the decoder's placement says so.
  Generator(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
            models::EngineOptions options, std::string base_weights = {});
  ~Generator() override;

  bool leads() const override { return backend_->leads(); }
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  // One step of the backend, and what is due before it.
  bool work() override;
  std::chrono::milliseconds call_slice() const override { return kCallSlice; }
  void stop() override { backend_->stop(); }
  // On the other ranks: does what the first does, and handles the calls that wait in between, until
  // that one stops. They draw nothing of their own, and never report.
  void follow(rpc::HandlerQueue& queue, const std::function<void()>& report = {}) override;

  uint64_t weight_version() const { return backend_->weight_version(); }
  // Counts the requests of all callers, in whatever state.
  size_t num_requests() const { return requests_.size(); }
  int64_t requests_served() const { return served_; }
  int64_t tokens_drawn() const { return tokens_; }
  Progress progress() const override;
  std::string summary() const override;

 private:
  using Clock = std::chrono::steady_clock;
  using Key = RequestTable::Key;
  using Job = RequestTable::Job;
  // Checked, and waiting for requests in work.
  struct Commit {
    uint64_t version = 0;
    uint64_t checksum = 0;
    Promise<CommitReply> reply;
    std::shared_ptr<const std::atomic<bool>> cancelled;  // of the caller
  };

  void serve_leader(rpc::Agent& agent, const std::shared_ptr<rpc::HandlerQueue>& queue);
  GeneratorInfo info() const;
  void submit(GenerateRequest request, const rpc::CallContext& caller);
  Payload score(const ForwardRequest& request);
  Future<CommitReply> commit(const CommitWeights& request, const rpc::CallContext& caller);

  bool begin_due();
  void begin(const Key& key);
  bool draw();
  void pass_on(FinishedSample sample);
  void fail_drawing(uint64_t request, const std::exception_ptr& error);
  Samples label_of(const GenerateRequest& request) const;
  bool apply_commit();
  void fail(const Key& key, ErrorCode code, const std::string& message);
  void give_up(const Key& key);
  void forget(const Key& key);
  void forget_lost_callers();
  void forget_lost_senders();
  void discard_commit();

  std::string name_;
  std::unique_ptr<SampleBackend> backend_;
  rpc::Agent* agent_ = nullptr;  // knows who is connected; null before serve()
  RequestTable requests_;
  std::map<uint64_t, Key> drawing_;  // that the backend has, by its number
  std::optional<Commit> commit_;
  std::optional<CommitReply> in_use_;  // what the commit of the weights in use was answered
  int64_t served_ = 0, tokens_ = 0;
  HandlerThread passes_, buckets_;  // end first
};

}  // namespace retort::roles
