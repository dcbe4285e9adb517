// The teacher role: a frozen decoder that answers typed requests.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/decoder.h"
#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "roles/payload/parts.h"
#include "roles/teacher/held_results.h"
#include "roles/teacher/methods.h"
#include "roles/teacher/requests.h"
#include "roles/trainer/pipeline.h"
#include "rpc/agent.h"

namespace retort::roles {

struct TeacherPlan;

// Answers teacher.info, teacher.head, teacher.forward and teacher.pull. As sent: one forward over
// the request's pack in inference mode, so the same request gives the same bits on every replica
// and at every time.
//
// A replica of several ranks (tensor or pipeline parallel) has one door: its leader, the first of
// world.mp(), takes the requests, refuses the bad ones, and broadcasts the others one after the
// other; every rank of the replica runs the forward pass. The ranks of the last stage form the
// payload and keep what is theirs to answer until it is pulled. When a rank is lost, the others
// fail with kCollective or kTimeout, at the latest when the world's timeout has passed: the replica
// ends as a whole.
//
// Threads: compute only (the thread that drains the handler queue); pulls, and the head of ranks
// that do not lead, are answered on a thread of the teacher's own. Collectives: none in a replica
// of one rank, else on world.mp(), tp() and pp().
class Teacher {
 public:
  // The ranks that hold one model together.
  struct Replica {
    // of the role; null: this rank has all of the model. Must outlive the teacher
    parallel::World* world = nullptr;
    // where the model was loaded from; for its fingerprint, if there is a world
    std::filesystem::path folder;
    HeldResults::Options held{};
  };
  // `name`: "teacher/0", that of the replica's leader.
  Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer, Replica replica);
  Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer);
  ~Teacher();

  bool leads() const { return replica_.world == nullptr || replica_.world->mp().rank() == 0; }
  // Whether this rank is asked for anything: it leads, or keeps answers.
  bool answers() const { return leads() || last_stage_; }

  TeacherInfo info(const InfoRequest& request);
  // kInvalidArgument for rows that this rank does not hold.
  HeadReply head(const HeadRequest& request) const;
  // In a replica of one rank. kInvalidArgument when ids, offsets or positions are outside what they
  // index.
  Payload forward(const ForwardRequest& request) const;

  // kAsSent: one forward for each request. kDynamic: requests that wait together (of any clients)
  // share a forward of at most `max_merged_tokens`, unless one alone is larger; numbers then depend
  // on what waited, in their last bits.
  enum class Batching { kAsSent, kDynamic };
  static constexpr int64_t kMaxMergedTokens = 16384;
  // Registers the methods that this rank answers; jobs go to `queue`. The teacher must outlive the
  // agent's handlers.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue,
             Batching batching = Batching::kAsSent, int64_t max_merged_tokens = kMaxMergedTokens);

  // The leader, between jobs (run_serving_loop): computes what several ranks have to, once no job
  // waits before it, and lets the other ranks know now and then that there is nothing. True: there
  // is more to do. An error ends the replica.
  bool work();
  // The leader, at the end: lets the others end.
  void stop();
  // All other ranks: computes with the leader until it stops. `tick` after each broadcast.
  void follow(const std::function<void()>& tick = {});

  int64_t requests_served() const { return served_; }
  int64_t forwards() const { return forwards_; }
  const HeldResults& held() const { return held_; }

 private:
  struct Waiting {
    ForwardRequest request;
    models::PackedTokens tokens;
    std::shared_ptr<const std::atomic<bool>> cancelled;
    Promise<Payload> reply;
  };
  Future<Payload> wait_to_merge(ForwardRequest request, const rpc::CallContext& context);
  Future<Payload> attend(ForwardRequest request, const rpc::CallContext& context);
  void serve_pulls(rpc::Agent& agent);
  void compute_waiting();
  void compute_together(std::vector<Waiting> batch) const;
  void compute_shared(const std::vector<ForwardRequest>& requests);
  void broadcast(const TeacherPlan& plan);
  void keep_alive();
  template <class Fn>
  void as_replica(Fn&& fn);
  void label(Payload& payload, const ForwardRequest& request) const;
  Payload answer(const ForwardRequest& request, const at::Tensor& hidden_rows) const;
  PieceMap pieces() const {
    return {.vocab_rows = decoder_.config().vocab_size, .ranks = decoder_.placement().tp_size()};
  }

  std::string name_;
  models::Decoder decoder_;
  models::Tokenizer tokenizer_;
  Replica replica_;
  bool last_stage_ = true;
  std::unique_ptr<Pipeline> pipeline_;
  uint64_t weight_version_ = 1;
  std::string fingerprint_;
  std::shared_ptr<rpc::HandlerQueue> queue_;
  std::vector<Waiting> waiting_;
  SharedRequests shared_;
  HeldResults held_;
  Batching batching_ = Batching::kAsSent;
  int64_t max_merged_tokens_ = kMaxMergedTokens, jobs_before_ = 0;
  std::chrono::steady_clock::time_point last_plan_;
  std::shared_ptr<rpc::HandlerQueue> pulls_;
  std::thread puller_;
  mutable int64_t served_ = 0, forwards_ = 0;
};

}  // namespace retort::roles
