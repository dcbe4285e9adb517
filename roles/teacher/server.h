// The teacher role: a frozen decoder that answers typed requests.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "roles/handler_thread.h"
#include "roles/served_role.h"
#include "roles/teacher/answer_computer.h"
#include "roles/teacher/answer_store.h"
#include "roles/teacher/methods.h"
#include "roles/teacher/parts.h"
#include "roles/teacher/replica_link.h"
#include "roles/teacher/request_queue.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers teacher.info, teacher.head, teacher.forward and teacher.pull. Every request goes one way:
//
//   the leader                                            the other ranks of the replica
//   teacher.forward
//     enqueue    checked, then in the RequestQueue;
//                the caller waits at the AnswerStore
//     work       RequestQueue::take
//                ReplicaLink::announce          --->      ReplicaLink::receive
//                AnswerComputer::compute        <-->      AnswerComputer::compute
//                AnswerStore: replies to teacher.forward  AnswerStore: replies to teacher.pull
//
// A replica is the ranks that hold one model together (tensor or pipeline parallel). Its leader,
// the first rank of world.mp(), alone takes requests. The ranks of the last stage form the answer,
// and each gives or keeps what PieceMap says that it has of every part.
//
// Use:
//   set_batching(kDynamic)          if it is not as sent
//   serve(agent, queue), and then   as every ServedRole
// Collectives: none in a replica of one rank, else on world.mp(), tp() and pp().
// Errors: a bad request fails alone, when it arrives. What fails in a forward pass fails the
//   requests of that pass which are not answered yet; in a replica of several ranks it ends the
//   replica as a whole: when a rank is lost, the others fail with kCollective or kTimeout, at the
//   latest when the world's timeout has passed.
// Threads: compute (the thread that drains the handler queue). Pulls, and the head of ranks that do
//   not lead, are answered on a thread of the teacher's own.
class Teacher final : public ServedRole {
 public:
  // The ranks that hold one model together.
  struct Replica {
    // of the role; null: this rank has all of the model. Must outlive the teacher
    parallel::World* world = nullptr;
    // where the model was loaded from; for its fingerprint, if there is a world
    std::filesystem::path folder;
    AnswerStore::Options store{};
    HiddenStateCache::Options kept{};  // for requests that name ids
    // Answers and rows of the head leave from the model's device, which needs an entry in the
    // agent's rpc.device_maps for whoever asks; what waits to be fetched takes memory there. Else
    // from host memory.
    bool answers_on_device = false;
  };
  // `name`: "teacher/0", that of the replica's leader.
  Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer, Replica replica);
  Teacher(std::string name, models::Decoder decoder, models::Tokenizer tokenizer);

  bool leads() const override { return link_.leads(); }
  // True if this rank is asked for anything: it leads, or keeps answers.
  bool answers() const override { return leads() || computer_.forms_answers(); }

  // kAsSent: one forward for each request, so the same request gives the same bits on every replica
  // and at every time. kDynamic: requests that wait together (of any clients) share a forward of at
  // most `max_merged_tokens`, unless one alone is larger; numbers then depend on what waited, in
  // their last bits.
  enum class Batching { kAsSent, kDynamic };
  static constexpr int64_t kMaxMergedTokens = 16384;
  // Before serve().
  void set_batching(Batching batching, int64_t max_merged_tokens = kMaxMergedTokens);
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;

  TeacherInfo info(const InfoRequest& request);
  // kInvalidArgument for rows that this rank does not hold.
  HeadReply head(const HeadRequest& request) const;
  // Called on the leader: what teacher.forward does. The future gets this rank's piece of
  // request.part when work() has computed it; where this rank has none, at once an answer without
  // tensors. RequestQueue says in which order requests are computed; one whose callers have all
  // gone is not. kInvalidArgument when ids, offsets or positions are outside what they index.
  Future<Payload> enqueue(const ForwardRequest& request, const rpc::CallContext& caller);

  // Called on the leader, between jobs: does one forward pass for what waits, once no job waits
  // before it; or lets the other ranks know now and then that there is nothing. True: there is more
  // to do. An error ends the replica.
  bool work() override;
  // Lets the other ranks end, when the leader calls it at the end. On every rank whoever still
  // waits for an answer gets kPeerLost, then and not only when the agent is closed.
  void stop() override;
  // Called on all other ranks: computes what the leader announces, until it stops. Their calls are
  // answered on a thread of the teacher's own. `report` after each message.
  void follow(rpc::HandlerQueue& queue, const std::function<void()>& report = {}) override;

  // The requests computed, and the forward passes that took.
  int64_t requests_served() const { return computer_.requests_served(); }
  int64_t forwards() const { return computer_.forwards(); }
  Progress progress() const override;
  std::string summary() const override;
  const AnswerStore& store() const { return store_; }

 private:
  void serve_leader(rpc::Agent& agent);
  void serve_other_rank(rpc::Agent& agent);
  bool jobs_come_first();
  void compute(const RequestBatch& batch);
  void deliver(const std::string& key, const ForwardRequest& request, Payload whole);
  void fail(const std::vector<std::string>& keys, const std::exception_ptr& error);
  void fail_all(const std::string& why);
  bool has_piece(const ForwardRequest& request, int64_t part) const;
  PieceMap pieces() const;
  PayloadLabel label_of(const ForwardRequest& request) const;

  std::string name_;
  models::Tokenizer tokenizer_;
  std::filesystem::path folder_;
  const std::string files_;  // TeacherInfo::files
  ReplicaLink link_;
  bool answers_on_device_;
  AnswerComputer computer_;
  RequestQueue requests_;
  AnswerStore store_;
  int64_t max_tokens_per_forward_ = 0;          // 0: as sent
  std::string fingerprint_;                     // once it was asked for
  std::shared_ptr<rpc::HandlerQueue> jobs_;     // null before serve()
  int64_t jobs_before_ = 0;                     // run while a request waited
  std::unique_ptr<HandlerThread> pull_thread_;  // on ranks that do not lead; it ends first
};

}  // namespace retort::roles
