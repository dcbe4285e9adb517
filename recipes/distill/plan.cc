#include "recipes/distill/plan.h"

#include <algorithm>

#include "models/checkpoint/checkpoint.h"
#include "models/config/config.h"
#include "parallel/vocab_shard.h"
#include "recipes/distill/cache_manifest.h"
#include "recipes/distill/draw_ahead.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_log_probs.h"
#include "roles/payload/payload.h"
#include "roles/teacher/hidden_state_cache.h"

namespace retort::recipes {
namespace {

// Returns the bytes of the hidden states that a teacher has computed ahead, for those requests that
// one of its replicas gets.
double plan_kept_rows(const Recipe& recipe, const RoleOptions& teacher, int64_t hidden_size) {
  const int64_t steps = prefetched_steps(*recipe.distill) + 1;
  const int64_t requests =
      steps * recipe.train.gradient_accumulation_steps * recipe.student().world.dp;
  const int64_t of_replica = (requests + teacher.world.dp - 1) / teacher.world.dp;
  const double bytes = static_cast<double>(of_replica * micro_batch_tokens(recipe, 1)) *
                       static_cast<double>(hidden_size * dtype_bytes(teacher.dtype));
  return std::min(bytes, static_cast<double>(roles::HiddenStateCache::Options{}.max_bytes));
}

// Ids that the student names take another way than answers that were asked for ahead.
void plan_named_ids(const Recipe& recipe, const RoleOptions& teacher,
                    const models::ModelConfig& config, LinkPlan& link) {
  if (!link.payload.names_ids()) return;
  const auto named =
      static_cast<double>(roles::named_bytes_per_row(link.payload, config.vocab_size));
  link.named_bytes_per_token = named * static_cast<double>(recipe.student().world.tp);
  // Only one micro-batch has its answers in flight, beside the ids.
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

  // `retort cache` would write so much, where the recipe allows a cache.
  const bool is_kept = !teacher.external && recipe.distill->lmbda == 0 &&
                       !link.payload.names_ids() && !recipe.distill->crosses_tokenizers();
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

// Beside a chunk of both sides' logits stand their probabilities, in order and with the slopes that
// come of it (losses/linear_uld.h).
void widen_for_sorts(const DistillOptions& options, models::LossSizes& loss) {
  const int64_t buffers = options.cross_tokenizer == CrossTokenizer::kGold ? 8 : 4;
  loss.logits_bytes *= buffers;
  loss.operator_buffers = 2 * buffers;
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
  if (options.crosses_tokenizers()) widen_for_sorts(options, loss);
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

}  // namespace

int64_t prefetched_steps(const DistillOptions& options) {
  if (options.lmbda == 0) return options.prefetch;
  return DrawAhead{.max_staleness = options.max_staleness}.asked(/*step=*/options.max_staleness +
                                                                 1);
}

RecipePlan plan_distill(const Recipe& recipe) {
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

}  // namespace retort::recipes
