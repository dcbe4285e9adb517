// sft, distill and on_policy_distill: packed samples, or the prompts of them.
#include "launch/student_recipe.h"
#include "recipes/data/dataset.h"
#include "recipes/distill.h"
#include "recipes/evaluate.h"
#include "recipes/on_policy.h"
#include "recipes/sft.h"

namespace retort::launch {
namespace {

class SampleRecipe : public StudentRecipe {
 public:
  explicit SampleRecipe(StudentContext& context) : context_(context) {
    train_ = open(context.recipe().data.train);
    if (!context.recipe().data.eval.empty())
      eval_ = data::eval_batches(*open(context.recipe().data.eval), context.batch_options());
  }
  const data::RowSet& rows() const override { return *train_; }
  int64_t steps_per_epoch() override {
    return data::BatchStream(train_, context_.batch_options()).steps_per_epoch();
  }

  void start(roles::Trainer& trainer, const recipes::LoopState& state) override {
    trainer_ = &trainer;
    stream_ = std::make_unique<data::BatchStream>(train_, context_.batch_options(), state.cursor);
    const auto source = [this](int64_t) { return stream_->next(); };
    if (context_.recipe().distill)
      objective_ = make_distill(on_policy(source));
    else
      objective_ = std::make_unique<recipes::SftObjective>(source);
  }
  recipes::Objective& objective() override { return *objective_; }
  recipes::Evaluator evaluator() override {
    if (eval_.empty()) return {};
    return [this](int64_t step) {
      return recipes::evaluation_row(step, recipes::evaluate(*trainer_, eval_, context_.world));
    };
  }

 private:
  std::shared_ptr<data::Dataset> open(const std::vector<data::Source>& sources) const {
    return std::make_shared<data::Dataset>(sources, context_.recipe().data, context_.tokenizer,
                                           context_.chat, context_.cache());
  }
  recipes::StepSource on_policy(recipes::StepSource data) {
    const recipes::DistillOptions& distill = *context_.recipe().distill;
    if (distill.lmbda == 0) return data;
    worker_ = make_rollout_worker(context_, trainer_->decoder());
    const recipes::OnPolicySource::Options options{
        .lmbda = distill.lmbda,
        .seed = static_cast<uint64_t>(context_.recipe().seed),
        .max_length = context_.recipe().data.max_length};
    auto source = std::make_shared<recipes::OnPolicySource>(context_.world, *trainer_,
                                                            std::move(data), worker_, options);
    return [source](int64_t step) { return (*source)(step); };
  }
  // Null on a rank where no loss is formed.
  std::unique_ptr<roles::TeacherClient> connect(const recipes::TeacherOptions& teacher) {
    if (!ends_pipeline(context_.world)) return nullptr;
    return connect_frozen(context_, teacher.role, context_.recipe().distill->payload_spec(),
                          {.tp = &context_.world.tp()});
  }
  std::unique_ptr<recipes::Objective> make_distill(recipes::StepSource source) {
    const recipes::DistillOptions& distill = *context_.recipe().distill;
    if (distill.use_policy_gradient)
      return std::make_unique<recipes::SampledTokenObjective>(
          std::move(source), connect(distill.teachers[0]),
          recipes::SampledTokenObjective::Options{.temperature = distill.temperature,
                                                  .dp_rank = context_.world.coordinate().dp,
                                                  .dp_size = context_.world.dp().size(),
                                                  .asks = ends_pipeline(context_.world)});
    std::vector<recipes::TeacherRoute> routes;
    for (const recipes::TeacherOptions& teacher : distill.teachers)
      routes.push_back(
          {.client = connect(teacher), .weight = teacher.weight, .when = teacher.when});
    return std::make_unique<recipes::DistillObjective>(
        std::move(source), context_.agent, std::move(routes),
        recipes::DistillObjective::Options{.divergence = distill.divergence(),
                                           .prefetch = distill.lmbda > 0 ? 0 : distill.prefetch,
                                           .dp_rank = context_.world.coordinate().dp,
                                           .dp_size = context_.world.dp().size(),
                                           .asks = ends_pipeline(context_.world)});
  }

  StudentContext& context_;
  std::shared_ptr<data::Dataset> train_;
  std::vector<data::MicroBatch> eval_;
  roles::Trainer* trainer_ = nullptr;
  std::shared_ptr<recipes::RolloutWorker> worker_;
  std::unique_ptr<data::BatchStream> stream_;
  std::unique_ptr<recipes::Objective> objective_;
};

}  // namespace

std::unique_ptr<StudentRecipe> make_sample_recipe(StudentContext& context) {
  return std::make_unique<SampleRecipe>(context);
}

}  // namespace retort::launch
