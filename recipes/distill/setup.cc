#include "recipes/distill/setup.h"

#include <algorithm>

#include "base/log.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "parallel/vocab_shard.h"
#include "recipes/audit.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/cached_teacher.h"
#include "recipes/distill/checks.h"
#include "recipes/distill/input_checks.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/on_policy.h"
#include "recipes/distill/row_rule.h"
#include "recipes/distill/self_check.h"
#include "recipes/distill/vocabulary_check.h"
#include "recipes/distill/write_cache.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/rollout_worker_setup.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/role_connections.h"
#include "recipes/run/sample_run.h"
#include "roles/payload/payload.h"
#include "roles/teacher/kept_rows.h"

namespace retort::recipes {
namespace {

// On-policy batches hold what the student of now draws, so nothing can be asked for ahead.
int64_t prefetched_steps(const DistillOptions& options) {
  return options.lmbda > 0 ? 0 : options.prefetch;
}

class DistillRun : public SampleRun {
 public:
  explicit DistillRun(RunContext& context)
      : SampleRun(context, distill_row_rule(context.recipe())),
        options_(*context.recipe().distill) {}

 protected:
  std::unique_ptr<Objective> make_objective(StepSource data) override {
    StepSource source = options_.lmbda == 0 ? std::move(data) : on_policy(std::move(data));
    if (options_.use_policy_gradient) return sampled_token_objective(std::move(source));
    return divergence_objective(std::move(source));
  }

 private:
  StepSource on_policy(StepSource data) {
    const Recipe& recipe = context().recipe();
    auto source = std::make_shared<OnPolicySource>(
        context().world, trainer(), std::move(data), make_rollout_worker(context(), trainer()),
        OnPolicySource::Options{
            .lmbda = options_.lmbda,
            .seed = static_cast<uint64_t>(recipe.seed),
            .max_length = recipe.data.max_length,
            .max_new_tokens = recipe.generation->max_new_tokens,
            .samples_folder = samples_folder(*recipe.generation, context().rank.run_folder),
            .tokenizer = context().tokenizer});
    return [source](int64_t step) { return (*source)(step); };
  }

  std::unique_ptr<Objective> sampled_token_objective(StepSource source) {
    const parallel::World& world = context().world;
    return std::make_unique<SampledTokenObjective>(
        std::move(source), connect(options_.teachers[0]),
        SampledTokenObjective::Options{.temperature = options_.temperature,
                                       .num_ids = num_drawn_ids(context()),
                                       .dp_rank = world.coordinate().dp,
                                       .dp_size = world.options().layout.dp,
                                       .asks = world.forms_loss()});
  }

  std::unique_ptr<Objective> divergence_objective(StepSource source) {
    const parallel::World& world = context().world;
    std::vector<TeacherRoute> routes;
    for (const TeacherOptions& teacher : options_.teachers)
      routes.push_back(
          {.client = answers_of(teacher), .weight = teacher.weight, .when = teacher.when});
    return std::make_unique<DistillObjective>(
        std::move(source), context().agent, std::move(routes),
        DistillObjective::Options{.divergence = options_.divergence(),
                                  .is_on_policy = on_policy_steps(context().recipe()),
                                  .prefetch = prefetched_steps(options_),
                                  .named_ids = payload_spec().names_ids() ? options_.loss_top_k : 0,
                                  .dp_rank = world.coordinate().dp,
                                  .dp_size = world.options().layout.dp,
                                  .asks = world.forms_loss()});
  }

  std::unique_ptr<roles::FrozenAnswers> answers_of(const TeacherOptions& teacher) {
    if (teacher.is_cached()) return open_cache(teacher);
    return connect(teacher);
  }

  // Each dp rank looks for its share of the rows. Null on a rank where no loss is formed.
  std::unique_ptr<roles::FrozenAnswers> open_cache(const TeacherOptions& teacher) {
    const parallel::World& world = context().world;
    if (!world.forms_loss()) return nullptr;
    auto cached = std::make_unique<CachedTeacher>(
        CachedTeacher::Options{.folder = teacher.cache,
                               .spec = payload_spec(),
                               .student_vocab_rows = context().vocab_rows,
                               .tp_rank = world.coordinate().tp,
                               .tp_size = world.options().layout.tp},
        context().tokenizer);
    cached->check_rows(train(), teacher.when, world.coordinate().dp, world.options().layout.dp);
    const bool same = cached->manifest().packs == describe_packs(context().batches());
    RETORT_LOG(kInfo) << "the payloads of " << teacher.cache << " are of "
                      << (same ? "the packs of this run: its first epoch has their teacher's bits"
                               : "other packs than those of this run: they agree with their "
                                 "teacher's but for the last bits");
    return cached;
  }

  // Null on a rank where no loss is formed.
  std::unique_ptr<roles::TeacherClient> connect(const TeacherOptions& teacher) {
    if (!context().world.forms_loss()) return nullptr;
    return connect_frozen_role(context(), teacher.role, spec_of(teacher.role),
                               {.tp = &context().world.tp(), .same_rows = &context().world.dp()});
  }

  // A teacher of ours gives the log-probability of a drawn token over the ids that are drawn, as
  // the student does.
  roles::PayloadSpec spec_of(const std::string& role) {
    roles::PayloadSpec spec = payload_spec();
    const RoleOptions& teacher = context().recipe().roles.at(role);
    if (spec.kind != roles::PayloadKind::kTargetLogProbs || teacher.external) return spec;
    const int64_t ids = context().tokenizer.vocab_size();
    if (ids < models::read_model_config(teacher.model).vocab_size) spec.common_vocab = ids;
    return spec;
  }

  roles::PayloadSpec payload_spec() { return options_.payload_spec(context().recipe().seed); }

  const DistillOptions& options_;
};

// The hidden states that a teacher has computed ahead, in requests that its replicas share.
double plan_kept_rows(const Recipe& recipe, const RoleOptions& teacher, int64_t hidden_size) {
  const int64_t steps = prefetched_steps(*recipe.distill) + 1;
  const int64_t requests =
      steps * recipe.train.gradient_accumulation_steps * recipe.student().world.dp;
  const int64_t of_replica = (requests + teacher.world.dp - 1) / teacher.world.dp;
  const double bytes = static_cast<double>(of_replica * micro_batch_tokens(recipe, 1)) *
                       static_cast<double>(hidden_size * dtype_bytes(teacher.dtype));
  return std::min(bytes, static_cast<double>(roles::KeptRows::Options{}.max_bytes));
}

// Ids that the student names take another way than answers that were asked for ahead.
void plan_named_ids(const Recipe& recipe, const RoleOptions& teacher,
                    const models::ModelConfig& config, LinkPlan& link) {
  if (!link.payload.names_ids()) return;
  const auto named =
      static_cast<double>(roles::named_bytes_per_row(link.payload, config.vocab_size));
  link.named_bytes_per_token = named * static_cast<double>(recipe.student().world.tp);
  // Of answers one micro-batch's are in flight, beside the ids.
  link.prefetch_bytes =
      (link.bytes_per_token + named) * static_cast<double>(micro_batch_tokens(recipe, 1));
  link.kept_bytes = plan_kept_rows(recipe, teacher, config.hidden_size);
}

LinkPlan plan_teacher_link(const Recipe& recipe, const std::string& role) {
  const RoleOptions& teacher = recipe.roles.at(role);
  const models::ModelConfig config = models::read_model_config(teacher.model);
  const auto bytes_per_token = static_cast<double>(
      roles::payload_bytes_per_row(recipe.distill->payload_spec(recipe.seed), config.hidden_size,
                                   config.vocab_size, dtype_bytes(teacher.dtype)));
  LinkPlan link = plan_link(recipe, role, bytes_per_token, tokens_per_step(recipe, 1),
                            prefetched_steps(*recipe.distill));
  link.payload = recipe.distill->payload_spec(recipe.seed);
  plan_named_ids(recipe, teacher, config, link);

  // What `retort cache` writes of it, where it may.
  const bool is_kept = !teacher.external && recipe.distill->lmbda == 0 && !link.payload.names_ids();
  if (!is_kept) return link;
  link.cache_bytes_per_sequence = static_cast<double>(kPayloadRecordBytes);
  if (link.payload.kind == roles::PayloadKind::kHiddenStates)
    link.cache_bytes_once =
        static_cast<double>(config.vocab_size * config.hidden_size * dtype_bytes(teacher.dtype));
  return link;
}

CachePlan plan_cache(const Recipe& recipe, const std::string& folder) {
  const CacheManifest manifest = read_manifest(folder);
  const auto bytes_per_token = static_cast<double>(payload_cache_bytes(manifest, 0, 1));
  return {.folder = folder,
          .sequences = manifest.sequences,
          .target_tokens = manifest.rows,
          .bytes = payload_cache_bytes(manifest, manifest.sequences, manifest.rows) +
                   manifest.head_bytes(),
          .bytes_per_token = bytes_per_token,
          .bytes_per_step = bytes_per_token * tokens_per_step(recipe, 1)};
}

struct TeacherHead {
  int64_t vocab_rows = 0, hidden_size = 0, dtype_bytes = 4;
};

TeacherHead head_of(const Recipe& recipe, const TeacherOptions& teacher) {
  if (teacher.is_cached()) {
    const CacheManifest manifest = read_manifest(teacher.cache);
    return {.vocab_rows = manifest.teacher.vocab_rows,
            .hidden_size = manifest.teacher.hidden_size,
            .dtype_bytes = static_cast<int64_t>(c10::elementSize(manifest.scalar_type()))};
  }
  const RoleOptions& role = recipe.roles.at(teacher.role);
  const models::ModelConfig config = models::read_model_config(role.model);
  return {.vocab_rows = config.vocab_size,
          .hidden_size = config.hidden_size,
          .dtype_bytes = dtype_bytes(role.dtype)};
}

// The student finds its ids as a teacher does its own.
int64_t plan_naming(const Recipe& recipe) {
  const DistillOptions& options = *recipe.distill;
  if (!options.payload_spec(recipe.seed).names_ids()) return 0;
  const RoleOptions& student = recipe.student();
  const models::ModelConfig config = models::read_model_config(student.model);
  return roles::payload_working_bytes(
      {.kind = roles::PayloadKind::kTopK, .top_k = options.loss_top_k},
      micro_batch_tokens(recipe, 1), config.hidden_size,
      parallel::vocab_rows_per_rank(config.vocab_size, student.world.tp),
      models::parse_dtype(std::string(enum_name(student.dtype))),
      student.world.device != parallel::Device::kCpu);
}

// Several teachers, or one of some rows, are a part for each where the vocabulary is split or on a
// device, and one with larger chunks elsewhere (losses/distill_shares.h). A teacher's head lies
// with each rank of the student, which holds its part of the vocabulary.
models::LossSizes plan_loss(const Recipe& recipe) {
  const DistillOptions& options = *recipe.distill;
  models::LossSizes loss;
  if (options.use_policy_gradient) {
    loss.kept_logits_bytes = losses::LogProbsOptions{}.kept_bytes;
    return loss;
  }
  loss.operator_buffers = 10;  // docs/losses.md
  loss.naming = plan_naming(recipe);
  const auto count = static_cast<int64_t>(options.teachers.size());
  const parallel::Layout& world = recipe.student().world;
  const bool shared = world.tp == 1 && world.device == parallel::Device::kCpu;
  if (!shared)
    loss.parts = count;
  else if (count > 1 || !options.teachers.front().when.empty())
    loss.logits_bytes = losses::kSharesChunkBytes;
  if (options.payload != roles::PayloadKind::kHiddenStates) return loss;

  for (const TeacherOptions& one : options.teachers) {
    const TeacherHead whole = head_of(recipe, one);
    const int64_t head =
        parallel::vocab_rows_per_rank(whole.vocab_rows, world.tp) * whole.hidden_size;
    loss.teacher_heads += head * whole.dtype_bytes;
    loss.widened_teacher_heads =
        shared ? loss.widened_teacher_heads + head : std::max(loss.widened_teacher_heads, head);
    loss.teacher_dtype_bytes = std::min(loss.teacher_dtype_bytes, whole.dtype_bytes);
  }
  return loss;
}

class DistillType : public RecipeType {
 public:
  std::string_view name() const override { return "distill"; }

  std::vector<std::string> watched_metrics(const Recipe&) const override { return {"kd_loss"}; }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "distill", .least = "distill: {teachers: [{role: teacher}]}"}};
  }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    assume_teacher(recipe, places);
  }

  double learning_rate(bool lora) const override { return lora ? 1e-5 : 1e-6; }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    return teacher_roles(*recipe.distill);
  }

  // Log-probabilities of tokens are read in host memory, and draws are made there.
  std::vector<std::string> device_roles(const Recipe& recipe) const override {
    if (!roles::may_be_on_device(recipe.distill->payload)) return {};
    return teacher_roles(*recipe.distill);
  }

  bool generates(const Recipe& recipe) const override { return recipe.distill->lmbda > 0; }
  std::string no_generation(const Recipe&) const override {
    return "has no effect with distill.lmbda: 0";
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    check_distill(recipe, places);
  }

  std::vector<InputPath> inputs(const Recipe& recipe) const override {
    std::vector<InputPath> paths;
    for (size_t i = 0; i < recipe.distill->teachers.size(); ++i)
      paths.push_back({.key = "distill.teachers[" + std::to_string(i) + "].cache",
                       .path = recipe.distill->teachers[i].cache});
    return paths;
  }

  void check_inputs(const Recipe& recipe, const RecipePlaces& places) const override {
    check_hidden_states(recipe, places);
    warn_of_more_ids(recipe, places);
    open_caches(recipe, places);
  }

  void check_cache(const Recipe& recipe) const override { check_cache_recipe(recipe); }
  void write_cache(const RankContext& context) const override { write_payload_cache(context); }

  RecipePlan plan(const Recipe& recipe) const override {
    RecipePlan plan;
    for (const TeacherOptions& teacher : recipe.distill->teachers) {
      if (teacher.is_cached())
        plan.caches.push_back(plan_cache(recipe, teacher.cache));
      else
        plan.links.push_back(plan_teacher_link(recipe, teacher.role));
    }
    plan.loss = plan_loss(recipe);
    return plan;
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_samples(recipe, num_samples, distill_row_rule(recipe));
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_distill_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<DistillRun>(context);
  }
};

class OnPolicyDistillType : public DistillType {
 public:
  std::string_view name() const override { return "on_policy_distill"; }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    DistillType::resolve(recipe, places);
    if (!recipe.distill) return;
    if (places.written({"distill", "lmbda"}) && recipe.distill->lmbda != 1.0)
      places.refuse({"distill", "lmbda"},
                    "on_policy_distill is distill with lmbda: 1.0; write recipe: distill for "
                    "another share of on-policy batches");
    recipe.distill->lmbda = 1.0;
  }
};

}  // namespace

const RecipeType* distill_type() {
  static const DistillType type;
  return &type;
}

const RecipeType* on_policy_distill_type() {
  static const OnPolicyDistillType type;
  return &type;
}

}  // namespace retort::recipes
