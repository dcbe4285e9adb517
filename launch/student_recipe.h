// What the student's process runs of a recipe: its rows, its objective, its evaluation. One class
// for each kind of data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "launch/role_process.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "recipes/data/row_set.h"
#include "recipes/objective.h"
#include "recipes/rollout.h"
#include "recipes/train_loop.h"
#include "roles/teacher_client.h"
#include "roles/trainer.h"
#include "rpc/agent.h"

namespace retort::launch {

// What every recipe is given.
struct StudentContext {
  const RoleContext& role;
  parallel::World& world;
  models::Tokenizer tokenizer;
  models::ChatTemplate chat;
  int64_t vocab_rows = 0;  // of the student's head
  rpc::Agent& agent;

  const Recipe& recipe() const { return role.recipe; }
  std::filesystem::path cache() const { return role.run_folder / "cache"; }
  data::BatchOptions batch_options() const;
};

// The calls come in this order: rows, steps_per_epoch (if epochs are asked for), start, objective
// and evaluator.
class StudentRecipe {
 public:
  virtual ~StudentRecipe() = default;
  virtual const data::RowSet& rows() const = 0;
  virtual int64_t steps_per_epoch() = 0;
  // Connects to the other roles and moves the data to where `state` left it.
  virtual void start(roles::Trainer& trainer, const recipes::LoopState& state) = 0;
  virtual recipes::Objective& objective() = 0;
  virtual recipes::Evaluator evaluator() { return {}; }
};

// `context` must outlive the result.
std::unique_ptr<StudentRecipe> make_sample_recipe(StudentContext& context);      // sft, distill
std::unique_ptr<StudentRecipe> make_preference_recipe(StudentContext& context);  // dpo
std::unique_ptr<StudentRecipe> make_grpo_recipe(StudentContext& context);
std::unique_ptr<StudentRecipe> make_rejection_recipe(StudentContext& context);

// The student's hands on the role that generation.role names.
std::shared_ptr<recipes::RolloutWorker> make_rollout_worker(StudentContext& context,
                                                            const models::Decoder& student);
// What ends a completion: the config's end tokens and the tokenizer's.
std::vector<int64_t> end_token_ids(const models::ModelConfig& config,
                                   const models::Tokenizer& tokenizer);

// Whether this rank is one of those where the loss is formed.
bool ends_pipeline(parallel::World& world);

// Waits for every rank of a role and connects to it; their names in order.
std::vector<std::string> connect_role(StudentContext& context, const std::string& role);

struct FrozenClient {
  bool weights_fingerprint = false;
  // the ranks that need every answer together; null: this rank asks alone
  parallel::Group* tp = nullptr;
};
// A client of a frozen role: handshake with all its replicas.
std::unique_ptr<roles::TeacherClient> connect_frozen(StudentContext& context,
                                                     const std::string& role,
                                                     const roles::PayloadSpec& spec,
                                                     const FrozenClient& options = {});

}  // namespace retort::launch
