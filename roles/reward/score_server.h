// A role that scores completions with a model of ours: a sequence classifier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "models/decoder.h"
#include "models/text/tokenizer.h"
#include "roles/reward/methods.h"
#include "roles/teacher/server.h"
#include "rpc/agent.h"

namespace retort::roles {

// Answers teacher.info and reward.score. Each sequence is a forward pass of its own: which ones
// come together depends on time, and a score must not. So a completion gets the same bits on every
// replica, at every time and beside whatever others, for the prompt being computed once for each.
// Requests are computed in the order of their arrival.
//
// A replica is a Teacher without its methods: one rank, or the ranks of a tensor-parallel group,
// whose first one leads and forms the scores. There is no pipeline.
// Use: serve(agent, queue); the leader work() between jobs, again and again, and stop(); the others
//   run_replica_rank().
// Errors, collectives, threads: as Teacher.
class ScoreServer {
 public:
  // `name`: "judge/0", that of the replica's leader. `decoder`: of a classifier. `replica.store` is
  // of the hidden states between model and head, which leave no process.
  ScoreServer(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
              Teacher::Replica replica);

  bool leads() const { return teacher_.leads(); }
  // On the leader. The server must outlive the agent's handlers.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue);
  bool work() { return teacher_.work(); }
  void stop() { teacher_.stop(); }
  void run_replica_rank(const std::function<void()>& tick = {}) { teacher_.run_replica_rank(tick); }

  TeacherInfo info(const InfoRequest& request) { return teacher_.info(request); }
  // kInvalidArgument for what check_question refuses, and for a label that the model has not.
  Future<RewardAnswer> score(const RewardQuestion& question, const rpc::CallContext& caller);
  int64_t completions_scored() const { return scored_; }

 private:
  ForwardRequest request_of(const RewardQuestion& question, size_t sequence);

  const models::ModelConfig config_;
  const models::Head head_;
  Teacher teacher_;
  int64_t asked_ = 0;   // sequences, each under a number of its own
  int64_t scored_ = 0;  // completions
};

}  // namespace retort::roles
