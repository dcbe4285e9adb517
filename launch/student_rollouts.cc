// grpo and rejection_sampling: prompts, a generator that follows the student, and rewards.
#include "base/error.h"
#include "launch/student_recipe.h"
#include "recipes/data/dataset.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/grpo.h"
#include "recipes/rejection_sampling.h"
#include "recipes/sft.h"

namespace retort::launch {
namespace {

// What both recipes have: prompts in order, the worker, the rewards, and an evaluation by greedy
// completions.
class RolloutRecipe : public StudentRecipe {
 public:
  explicit RolloutRecipe(StudentContext& context) : context_(context) {
    prompts_ = open(context.recipe().data.train);
    if (!context.recipe().data.eval.empty()) eval_ = open(context.recipe().data.eval);
  }
  const data::RowSet& rows() const override { return *prompts_; }
  int64_t steps_per_epoch() override {
    throw Error(ErrorCode::kInvalidArgument, "train.num_train_epochs is not for this recipe");
  }

  void start(roles::Trainer& trainer, const recipes::LoopState& state) override {
    trainer_ = &trainer;
    rewards_ = std::make_shared<rewards::RewardSet>(context_.recipe().rewards,
                                                    context_.world.mp().rank() == 0);
    worker_ = make_rollout_worker(context_, trainer.decoder());
    begin(state);
  }
  recipes::Evaluator evaluator() override {
    if (!eval_) return {};
    return [this](int64_t step) { return evaluate(step); };
  }

 protected:
  virtual void begin(const recipes::LoopState& state) = 0;
  virtual std::vector<recipes::RolloutWorker::Pending*> in_flight() { return {}; }

  std::unique_ptr<data::IndexStream> order_from(const data::IndexCursor& cursor) const {
    return std::make_unique<data::IndexStream>(
        prompts_,
        data::IndexOptions{.seed = static_cast<uint64_t>(context_.recipe().seed),
                           .shuffle = context_.recipe().data.shuffle},
        cursor);
  }

  StudentContext& context_;
  std::shared_ptr<data::PromptDataset> prompts_, eval_;
  roles::Trainer* trainer_ = nullptr;
  std::shared_ptr<rewards::RewardSet> rewards_;
  std::shared_ptr<recipes::RolloutWorker> worker_;

 private:
  std::shared_ptr<data::PromptDataset> open(const std::vector<data::Source>& sources) const {
    data::DataOptions options = context_.recipe().data;
    // room for the completion
    options.max_length = options.max_length - context_.recipe().generation->max_new_tokens + 1;
    return std::make_shared<data::PromptDataset>(sources, options, context_.tokenizer,
                                                 context_.chat, context_.cache());
  }
  recipes::MetricsRow evaluate(int64_t step);
};

// The mean reward of one greedy completion for each held-out prompt.
recipes::MetricsRow RolloutRecipe::evaluate(int64_t step) {
  parallel::Group& dp = context_.world.dp();
  std::vector<data::PromptSample> mine;
  for (int64_t row = dp.rank(); row < eval_->size(); row += dp.size())
    if (auto prompt = eval_->get(row)) mine.push_back(std::move(*prompt));
  std::vector<uint64_t> ids(mine.size(), 0);
  worker_->sync(trainer_->decoder(), static_cast<uint64_t>(step) + 1, in_flight());
  recipes::Rollout rollout =
      worker_->finish(worker_->begin(step, (uint64_t{1} << 41) + static_cast<uint64_t>(step),
                                     std::move(mine), std::move(ids), /*greedy=*/true));
  worker_->score(rollout, *rewards_);
  double reward = 0, scored = 0, tokens = 0, count = 0;
  for (const auto& group : rollout.groups)
    for (const auto& sample : group.samples) {
      reward += sample.reward.value_or(0);
      scored += sample.reward ? 1 : 0;
      tokens += static_cast<double>(sample.completion.token_ids.size());
      count += 1;
    }
  const double all_reward = dp.all_reduce(reward), all_scored = dp.all_reduce(scored);
  const double all_tokens = dp.all_reduce(tokens), all_count = dp.all_reduce(count);
  recipes::MetricsRow row{.step = step, .values = {}};
  row.add("eval_reward", all_reward / all_scored)
      .add("eval_num_prompts", static_cast<int64_t>(all_count))
      .add("eval_num_unscorable", static_cast<int64_t>(all_count - all_scored))
      .add("eval_completions/mean_length", all_tokens / all_count);
  return row;
}

class GrpoRecipe : public RolloutRecipe {
 public:
  using RolloutRecipe::RolloutRecipe;
  recipes::Objective& objective() override { return *objective_; }

 protected:
  void begin(const recipes::LoopState& state) override {
    const Recipe& recipe = context_.recipe();
    const recipes::TrainOptions& train = recipe.train;
    const int64_t per_rank = *train.per_device_train_batch_size * train.gradient_accumulation_steps;
    const data::IndexCursor cursor{.epoch = state.cursor.epoch,
                                   .place = state.cursor.packs_consumed,
                                   .total_rows = state.cursor.total_steps};
    std::unique_ptr<roles::TeacherClient> reference;
    if (recipe.grpo->beta > 0 && recipes::GrpoObjective::asks_reference(context_.world))
      reference = connect_frozen(context_, recipe.grpo->reference,
                                 {.kind = roles::PayloadKind::kTargetLogProbs,
                                  .temperature = recipe.generation->temperature});
    objective_ = std::make_unique<recipes::GrpoObjective>(
        context_.world, *trainer_, prompts_, order_from(cursor), worker_, rewards_,
        std::move(reference),
        recipes::GrpoObjective::Options{.grpo = *recipe.grpo,
                                        .prompts_per_round = per_rank * context_.world.dp().size() /
                                                             recipe.generation->num_generations,
                                        .micro_batches = train.gradient_accumulation_steps,
                                        .rows_per_micro_batch = *train.per_device_train_batch_size,
                                        .save_steps = train.save_steps,
                                        .max_steps = *train.max_steps,
                                        .start_step = state.step,
                                        .start_cursor = cursor});
  }
  std::vector<recipes::RolloutWorker::Pending*> in_flight() override {
    return objective_->in_flight();
  }

 private:
  std::unique_ptr<recipes::GrpoObjective> objective_;
};

class RejectionRecipe : public RolloutRecipe {
 public:
  using RolloutRecipe::RolloutRecipe;
  recipes::Objective& objective() override { return *objective_; }

 protected:
  // SFT whose rows show how they came about.
  class Objective : public recipes::SftObjective {
   public:
    Objective(recipes::StepSource source, const recipes::RejectionSampler& sampler)
        : SftObjective(std::move(source)), sampler_(sampler) {}

   protected:
    void add_metrics(const recipes::StepSums& sums, recipes::MetricsRow& row) override {
      SftObjective::add_metrics(sums, row);
      sampler_.add_metrics(row);
    }

   private:
    const recipes::RejectionSampler& sampler_;
  };

  void begin(const recipes::LoopState& state) override {
    const Recipe& recipe = context_.recipe();
    const auto open = [this](const std::filesystem::path& file, data::BatchCursor cursor) {
      const data::Source source{.path = file.string(), .format = data::Format::kInputIds};
      auto kept =
          std::make_shared<data::Dataset>(std::vector<data::Source>{source}, context_.recipe().data,
                                          context_.tokenizer, context_.chat, context_.cache());
      return std::make_unique<data::BatchStream>(std::move(kept), context_.batch_options(), cursor);
    };
    sampler_ = std::make_unique<recipes::RejectionSampler>(
        context_.world, *trainer_, prompts_, order_from({}), worker_, rewards_, open,
        recipes::RejectionSampler::Options{
            .rejection = *recipe.rejection_sampling,
            .steps_per_round = *recipe.train.max_steps / recipe.rejection_sampling->rounds,
            .seed = static_cast<uint64_t>(recipe.seed),
            .run_folder = context_.role.run_folder});
    objective_ = std::make_unique<Objective>(
        [this, cursor = state.cursor](int64_t step) { return sampler_->step(step, cursor); },
        *sampler_);
  }

 private:
  std::unique_ptr<recipes::RejectionSampler> sampler_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace

std::shared_ptr<recipes::RolloutWorker> make_rollout_worker(StudentContext& context,
                                                            const models::Decoder& student) {
  const Recipe& recipe = context.recipe();
  const std::string& role = recipe.generation->role;
  std::unique_ptr<roles::GeneratorClient> client;
  if (recipes::RolloutWorker::needs_client(context.world))
    client = std::make_unique<roles::GeneratorClient>(
        context.agent,
        roles::GeneratorClient::Options{.role = role,
                                        .peers = connect_role(context, role),
                                        .tp = recipe.roles.at(role).world.tp,
                                        .timeout = recipe.rpc.timeout,
                                        .generation_timeout = recipe.generation->timeout},
        context.tokenizer, student);
  recipes::GenerationOptions generation = *recipe.generation;
  if (recipe.distill) generation.num_generations = 1;  // one completion for each prompt of a batch
  return std::make_shared<recipes::RolloutWorker>(
      context.world, std::move(client), context.tokenizer,
      recipes::RolloutWorker::Options{
          .generation = std::move(generation),
          .sync = *recipe.weight_sync,
          .seed = static_cast<uint64_t>(recipe.seed),
          .eos_token_ids = end_token_ids(student.config(), context.tokenizer),
          .run_folder = context.role.run_folder});
}

std::unique_ptr<StudentRecipe> make_grpo_recipe(StudentContext& context) {
  return std::make_unique<GrpoRecipe>(context);
}
std::unique_ptr<StudentRecipe> make_rejection_recipe(StudentContext& context) {
  return std::make_unique<RejectionRecipe>(context);
}

}  // namespace retort::launch
