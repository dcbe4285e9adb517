// A role that scores completions with a model of ours: a sequence classifier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "models/decoder/decoder.h"
#include "models/text/tokenizer.h"
#include "roles/reward/methods.h"
#include "roles/served_role.h"
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
// Use: as every ServedRole.
// Errors, collectives, threads: as Teacher.
class ScoreServer final : public ServedRole {
 public:
  // `name`: "scorer/0", that of the replica's leader. `decoder`: of a classifier. `replica.store`
  // is of the hidden states between model and head, which leave no process.
  ScoreServer(std::string name, models::Decoder decoder, models::Tokenizer tokenizer,
              Teacher::Replica replica);

  bool leads() const override { return teacher_.leads(); }
  // The leader alone has methods.
  void serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) override;
  bool work() override { return teacher_.work(); }
  void stop() override { teacher_.stop(); }
  void follow(rpc::HandlerQueue& queue, const std::function<void()>& report = {}) override {
    teacher_.follow(queue, report);
  }

  TeacherInfo info(const InfoRequest& request) { return teacher_.info(request); }
  // kInvalidArgument for what check_question refuses, and for a label that the model has not.
  Future<RewardAnswer> score(const RewardQuestion& question, const rpc::CallContext& caller);
  int64_t completions_scored() const { return scored_; }
  Progress progress() const override { return {scored_, "completions scored"}; }
  std::string summary() const override { return std::to_string(scored_) + " completions scored"; }

 private:
  ForwardRequest request_of(const RewardQuestion& question, size_t sequence);

  const models::ModelConfig config_;
  const models::Head head_;
  Teacher teacher_;
  int64_t asked_ = 0;   // sequences, each under a number of its own
  int64_t scored_ = 0;  // completions
};

}  // namespace retort::roles
