#include "recipes/rejection_sampling/setup.h"

#include "recipes/data/dataset.h"
#include "recipes/rejection_sampling/sampler.h"
#include "recipes/rollout/audit.h"
#include "recipes/rollout/reward_check.h"
#include "recipes/rollout/rollout_run.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/rollout/self_check.h"
#include "recipes/rollout/turn_check.h"
#include "recipes/rules/data.h"
#include "recipes/rules/generation.h"
#include "recipes/sft/objective.h"

namespace retort::recipes {
namespace {

class RejectionSamplingRun : public RolloutRun {
 public:
  using RolloutRun::RolloutRun;
  Objective& objective() override { return *objective_; }

 protected:
  void begin(const LoopState& state) override {
    const Recipe& recipe = context_.recipe();
    const RejectionSamplingOptions& options = *recipe.rejection_sampling;
    sampler_ = std::make_unique<RejectionSampler>(
        context_.world, *trainer_, prompts_, order_from({}), samples_, scorer_,
        [this](const std::filesystem::path& file, data::Cursor cursor) {
          return open_kept(file, cursor);
        },
        RejectionSampler::Options{
            .rejection = options,
            .num_generations = recipe.generation->num_generations,
            .steps_per_round = *recipe.train.max_steps / options.rounds,
            .episodes = recipe.environment.has_value(),
            .seed = static_cast<uint64_t>(recipe.seed),
            .run_folder = context_.rank.run_folder,
            .samples_folder = samples_folder(*recipe.generation, context_.rank.run_folder)});
    // This is SFT whose metrics also show how its rows came about.
    objective_ = std::make_unique<SftObjective>(
        [this, cursor = state.cursor](int64_t step) { return sampler_->step(step, cursor); });
    objective_->also_add([this](MetricsRow& row) { sampler_->add_metrics(row); });
  }

  // Every round begins with a push of its own.
  bool may_push_after(int64_t) const override { return true; }

 private:
  std::unique_ptr<data::BatchStream> open_kept(const std::filesystem::path& file,
                                               data::Cursor cursor) const {
    const data::Source source{.path = file.string(), .format = data::Format::kInputIds};
    auto kept =
        std::make_shared<data::Dataset>(std::vector<data::Source>{source}, context_.recipe().data,
                                        context_.tokenizer, context_.chat, context_.cache());
    return std::make_unique<data::BatchStream>(std::move(kept), context_.batches(), cursor);
  }

  std::unique_ptr<RejectionSampler> sampler_;
  std::unique_ptr<SftObjective> objective_;
};

class RejectionSamplingType : public RecipeType {
 public:
  std::string_view name() const override { return "rejection_sampling"; }

  data::RowCheck row_check(const Recipe&) const override { return &data::check_prompt_row; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"episodes/num_lost", "reward", "reward_kept"};
  }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "rejection_sampling", .least = "rejection_sampling: {rounds: 2}"},
            {.name = "rewards", .least = "rewards: [{type: numeric}]"}};
  }

  bool generates(const Recipe&) const override { return true; }

  // 0 prompts are those of all rows, which are not counted yet.
  std::optional<double> episodes_at_once(const Recipe& recipe) const override {
    if (!recipe.rejection_sampling || !recipe.generation) return 0;
    return static_cast<double>(recipe.rejection_sampling->prompts_per_round) *
           static_cast<double>(recipe.generation->num_generations);
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    const TrainOptions& train = recipe.train;
    const int64_t rounds = recipe.rejection_sampling->rounds;
    if (train.batch_size_rampup_steps > 0)
      places.refuse({"train", "batch_size_rampup_steps"},
                    "this recipe's batches are what its generator drew; remove it");
    if (train.num_train_epochs)
      places.refuse({"train", "num_train_epochs"},
                    "is not for rejection_sampling, whose rows are not known before; use "
                    "max_steps");
    if (*train.max_steps % rounds != 0)
      places.refuse({"train", "max_steps"},
                    "must be a multiple of rejection_sampling.rounds = " + std::to_string(rounds) +
                        "; every round trains equally long");

    if (recipe.generation->num_generations == 1 && !recipe.rejection_sampling->deduplicate)
      places.refuse({"rejection_sampling", "deduplicate"},
                    "has no effect with generation.num_generations: 1, where a prompt has one "
                    "completion; remove it");

    if (recipe.environment && recipe.rejection_sampling->prompts_per_round == 0 &&
        !places.written({"generation", "timeout"}))
      places.refuse({"rejection_sampling", "prompts_per_round"},
                    "0 takes all rows in a round, and how long their episodes wait for room in the "
                    "environment is not known before; write how many, or generation.timeout, which "
                    "is for all episodes of a round");
    check_samples_differ(*recipe.generation, places);
    check_draws_with_student_of_now(*recipe.weight_sync, places);
    check_no_target_choice(recipe.data, places, "the completions that it keeps");
    check_no_wrapping(recipe.data, places, "prompts with their completions");
    check_keeps_start(recipe.data, places, "prompts are never cut");
    check_no_tokenized_cache(recipe.data, places, "prompts with their completions");
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_prompts(recipe, num_samples);
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    const CheckedPrompts prompts = check_prompts(check, recipe);
    check_turns(check, recipe);
    check_rewards(check, recipe, prompts.first, prompts.greedy_ids);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<RejectionSamplingRun>(context);
  }
};

}  // namespace

const RecipeType* rejection_sampling_type() {
  static const RejectionSamplingType type;
  return &type;
}

}  // namespace retort::recipes
