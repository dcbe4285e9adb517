#include "recipes/kto/setup.h"

#include <memory>
#include <utility>
#include <vector>

#include "recipes/data/unpaired_batches.h"
#include "recipes/data/unpaired_dataset.h"
#include "recipes/kto/audit.h"
#include "recipes/kto/objective.h"
#include "recipes/kto/self_check.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rules/data.h"
#include "recipes/rules/references.h"
#include "recipes/rules/train.h"
#include "recipes/run/rank/stream_run.h"
#include "recipes/run/reference/reference_setup.h"
#include "recipes/run/reference/student_reference.h"

namespace retort::recipes {
namespace {

std::shared_ptr<const data::UnpairedDataset> open_labels(const RunContext& context,
                                                         const std::vector<data::Source>& sources) {
  return std::make_shared<data::UnpairedDataset>(sources, context.recipe().data, context.tokenizer,
                                                 context.chat, context.cache());
}

class KtoRun : public StreamRun<data::UnpairedDataset, data::UnpairedBatchStream, KtoObjective> {
 public:
  explicit KtoRun(RunContext& context)
      : StreamRun(context, &open_labels, &data::eval_unpaired_batches),
        options_(*context.recipe().kto) {}

 protected:
  std::unique_ptr<KtoObjective> make_objective(KtoObjective::RowSource rows,
                                               roles::Trainer& trainer) override {
    const parallel::World& world = context_.world;
    std::unique_ptr<Reference> reference =
        is_own_reference(context_.recipe().roles, options_.reference)
            ? make_student_reference(trainer, *context_.recipe().student().lora)
            : make_cached_reference(context_, options_.reference, options_.reference_cache);
    return std::make_unique<KtoObjective>(
        std::move(rows), trainer, std::move(reference),
        kto_objective_options(options_, world.coordinate().dp, world.options().layout.dp));
  }

  MetricsRow evaluate(KtoObjective& objective, int64_t step,
                      const std::vector<data::UnpairedMicroBatch>& batches) override {
    return objective.evaluate(step, batches, context_.world);
  }

 private:
  const KtoOptions& options_;
};

// Mismatched completions are those of other rows of a global batch, so it must have two rows.
// `ranks`: the number of dp ranks.
void check_two_rows(const TrainOptions& train, const data::DataOptions& data, int64_t ranks,
                    const RecipePlaces& places) {
  const std::string why =
      "; loss_type: kto estimates the student's distance from the reference on the prompts of a "
      "batch with completions of its other rows. Use larger batches, or loss_type: "
      "apo_zero_unpaired";
  if (train.tokens_per_batch) {
    const int64_t places_for_rows = train.gradient_accumulation_steps * ranks;
    if (places_for_rows == 1 && *train.tokens_per_batch < 2 * data.max_length)
      places.refuse({"train", "tokens_per_batch"}, "must be at least twice data.max_length (2 * " +
                                                       std::to_string(data.max_length) +
                                                       "), so that two rows fit" + why);
    return;
  }

  const bool grows = train.batch_size_rampup_steps > 0;
  const int64_t micro_batches = grows ? 1 : train.gradient_accumulation_steps;
  const int64_t rows = train.per_device_train_batch_size.value_or(TrainOptions::kDefaultBatchSize);
  if (rows * micro_batches * ranks < 2)
    places.refuse({"train", "per_device_train_batch_size"},
                  "gives the " + std::string(grows ? "first " : "") +
                      "optimizer step one row, it must have at least 2" + why);
}

class KtoType : public RecipeType {
 public:
  std::string_view name() const override { return "kto"; }

  data::RowCheck row_check(const Recipe&) const override { return &data::check_unpaired_row; }
  bool forms_batches_by_length() const override { return true; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"rewards/margins"};
  }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "kto", .least = "kto: {beta: 0.1}", .required = false}};
  }

  void resolve(Recipe& recipe, const RecipePlaces&) const override {
    if (!recipe.kto) recipe.kto.emplace();
  }

  double learning_rate(bool lora) const override { return lora ? 1e-5 : 1e-6; }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    return reference_roles(recipe.roles, recipe.kto->reference);
  }

  bool compares_with_student(const Recipe& recipe) const override {
    return is_own_reference(recipe.roles, recipe.kto->reference);
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    const KtoOptions& kto = *recipe.kto;
    check_no_packing(recipe.data, places, "completions");
    check_keeps_start(recipe.data, places,
                      "a prompt also stands before the completions of other rows, as a whole");
    check_no_target_choice(recipe.data, places, "the completion of a row");
    check_reference(recipe.roles, places, {"kto", "reference"}, kto.reference, true, "");
    check_own_reference(recipe.roles, places, "kto", kto.reference, kto.reference_cache,
                        kto.prefetch, KtoOptions().prefetch);
    if (losses::needs_kl(kto.loss())) {
      check_two_rows(recipe.train, recipe.data, recipe.student().world.dp, places);
      check_no_skipped_steps(recipe.train, places, "z, which all rows share");
    }
    if (recipe.train.batch_size_rampup_steps > 0 && recipe.train.tokens_per_batch)
      places.refuse({"train", "batch_size_rampup_steps"},
                    "batches of rows by tokens are formed before their step is known; use "
                    "per_device_train_batch_size");
  }

  std::vector<InputPath> inputs(const Recipe& recipe) const override {
    return {{.key = "kto.reference_cache", .path = recipe.kto->reference_cache}};
  }

  // Where the loss needs z, the mismatched completions are computed and asked for as well.
  RecipePlan plan(const Recipe& recipe) const override {
    const KtoOptions& kto = *recipe.kto;
    const int64_t mismatched = losses::needs_kl(kto.loss()) ? 1 : 0;
    const double tokens = static_cast<double>(1 + mismatched) * tokens_per_step(recipe, 1);
    RecipePlan plan{.extra_forwards = mismatched,
                    .links = {},
                    .loss = {.kept_logits_bytes = losses::LogProbsOptions{}.kept_bytes}};
    for (const std::string& role : frozen_roles(recipe))
      plan.links.push_back(plan_reference_link(recipe, role, tokens, kto.prefetch));
    if (plan.links.empty()) plan.extra_student_forwards = 1 + mismatched;
    return plan;
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_labels(recipe, num_samples);
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_kto_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<KtoRun>(context);
  }
};

}  // namespace

KtoObjective::Options kto_objective_options(const KtoOptions& options, int64_t dp_rank,
                                            int64_t dp_size) {
  return {
      .loss = options.loss(), .prefetch = options.prefetch, .dp_rank = dp_rank, .dp_size = dp_size};
}

const RecipeType* kto_type() {
  static const KtoType type;
  return &type;
}

}  // namespace retort::recipes
