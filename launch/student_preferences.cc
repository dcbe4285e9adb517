// dpo: pairs of completions and a frozen reference.
#include "base/hash.h"
#include "launch/student_recipe.h"
#include "recipes/data/pair_batches.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/dpo.h"

namespace retort::launch {
namespace {

class PreferenceRecipe : public StudentRecipe {
 public:
  explicit PreferenceRecipe(StudentContext& context) : context_(context) {
    train_ = open(context.recipe().data.train);
    if (!context.recipe().data.eval.empty())
      eval_ = data::eval_pair_batches(*open(context.recipe().data.eval), pair_options());
  }
  const data::RowSet& rows() const override { return *train_; }
  int64_t steps_per_epoch() override {
    return data::PairBatchStream(train_, pair_options()).steps_per_epoch();
  }

  void start(roles::Trainer& trainer, const recipes::LoopState& state) override {
    trainer_ = &trainer;
    stream_ = std::make_unique<data::PairBatchStream>(train_, pair_options(), state.cursor);
    const recipes::DpoOptions& dpo = *context_.recipe().dpo;
    std::optional<recipes::Reference> reference;
    const bool asks = ends_pipeline(context_.world) && context_.world.tp().rank() == 0;
    if (losses::needs_reference(dpo.preference()))
      reference = asks ? connect_reference(dpo) : recipes::Reference{};
    objective_ = std::make_unique<recipes::DpoObjective>(
        [this](int64_t) { return stream_->next(); }, std::move(reference),
        recipes::DpoObjective::Options{
            .loss = dpo.preference(),
            .prefetch = dpo.prefetch,
            .dp_rank = context_.world.coordinate().dp,
            .dp_size = context_.world.dp().size(),
            .tp = ends_pipeline(context_.world) ? &context_.world.tp() : nullptr});
  }
  recipes::Objective& objective() override { return *objective_; }
  recipes::Evaluator evaluator() override {
    if (eval_.empty()) return {};
    return [this](int64_t step) {
      return objective_->evaluate(step, *trainer_, eval_, context_.world);
    };
  }

 private:
  std::shared_ptr<data::PreferenceDataset> open(const std::vector<data::Source>& sources) const {
    return std::make_shared<data::PreferenceDataset>(
        sources, context_.recipe().data, context_.tokenizer, context_.chat, context_.cache());
  }
  data::PairBatchOptions pair_options() const {
    const data::BatchOptions options = context_.batch_options();
    return {.seed = options.seed,
            .rows_per_micro_batch = options.rows_per_micro_batch,
            .tokens_per_micro_batch = options.tokens_per_micro_batch,
            .micro_batches = options.micro_batches,
            .rampup_steps = options.rampup_steps,
            .shuffle = options.shuffle,
            .dp_rank = options.dp_rank,
            .dp_size = options.dp_size};
  }
  recipes::Reference connect_reference(const recipes::DpoOptions& dpo) {
    auto client =
        connect_frozen(context_, dpo.reference, {.kind = roles::PayloadKind::kTargetLogProbs},
                       {.weights_fingerprint = true});
    const roles::TeacherInfo& info = client->info();
    const std::string fingerprint =
        sha256_hex(info.weights_fingerprint + info.dtype + info.vocabulary_fingerprint);
    const auto root =
        dpo.reference_cache.empty() ? context_.cache() : std::filesystem::path(dpo.reference_cache);
    auto cache = std::make_unique<recipes::ReferenceCache>(
        root, fingerprint, context_.role.run_folder, context_.world.rank());
    return {.client = std::move(client), .cache = std::move(cache)};
  }

  StudentContext& context_;
  std::shared_ptr<data::PreferenceDataset> train_;
  std::vector<data::PairMicroBatch> eval_;
  roles::Trainer* trainer_ = nullptr;
  std::unique_ptr<data::PairBatchStream> stream_;
  std::unique_ptr<recipes::DpoObjective> objective_;
};

}  // namespace

std::unique_ptr<StudentRecipe> make_preference_recipe(StudentContext& context) {
  return std::make_unique<PreferenceRecipe>(context);
}

}  // namespace retort::launch
