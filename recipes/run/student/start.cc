#include "recipes/run/student/start.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/today.h"
#include "models/checkpoint/adapter.h"
#include "models/checkpoint/checkpoint.h"
#include "parallel/vote.h"
#include "recipes/data/resumed_rows.h"
#include "recipes/roles/adapter.h"
#include "recipes/run/checkpoints/checkpoint_store.h"
#include "recipes/run/checkpoints/resume_point.h"
#include "recipes/run/inputs/student_model.h"

namespace retort::recipes {
namespace {

// Names the adapter that the student is compared with; "": none is kept. A resumed run reads it
// again, and it must be the one that the run began with.
std::string first_adapter(const RankContext& context, const std::filesystem::path& checkpoint) {
  if (!keeps_first_adapter(context.recipe)) return "";
  const std::string& folder = *context.role_options().lora->adapter;
  if (!checkpoint.empty() && !read_loop_state(checkpoint).first_adapter) {
    RETORT_LOG(kWarning) << checkpoint.string()
                         << " was written when the reference was the model without an adapter; "
                            "from here on it is the adapter in "
                         << folder;
  }
  return models::adapter_fingerprint(folder);
}

// The checkpoint must hold what the recipe trains: a whole model, or an adapter with the same
// settings.
void check_checkpoint_kind(const std::filesystem::path& checkpoint, const Recipe& recipe) {
  const RoleOptions& role = recipe.student();
  if (checkpoint.empty()) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(
        ErrorCode::kInvalidArgument,
        checkpoint.string() + " " + what + "; restore roles.student.lora, or start a new run");
  };
  const bool holds_adapter = models::is_adapter_folder(checkpoint);
  if (!role.lora && holds_adapter) refuse("is an adapter's, and the recipe trains a whole model");
  if (!role.lora) return;
  if (!holds_adapter) refuse("is a whole model's, and the recipe trains an adapter");
  const std::string difference =
      lora_difference(role_config(recipe, Recipe::kDrivingRole),
                      models::read_adapter_config(checkpoint), student_adapter(recipe));
  if (!difference.empty()) refuse("is of an adapter with other settings (" + difference + ")");
}

}  // namespace

std::filesystem::path resume_point(const RankContext& context, parallel::World& world) {
  if (!context.resume) return {};
  // A rank that waits for the folder leaves the others at a vote, which has the timeout of a
  // collective: half of it is left for what follows.
  const Duration patience = std::min(kLateFolder, context.recipe.launch.collective_timeout / 2);
  return agree_on_checkpoint(
      world, context.run_folder, patience,
      [&](int64_t step, const std::string& what) { context.warn("loading", step, what); });
}

std::string template_day(const RankContext& context, const std::filesystem::path& checkpoint,
                         parallel::World& world) {
  if (context.recipe.data.template_date) return *context.recipe.data.template_date;
  // The first rank says the day: ranks that start around midnight would else render the same rows
  // differently.
  const std::string day = checkpoint.empty() ? today() : read_loop_state(checkpoint).template_day;
  return world.all().broadcast(day, 0);
}

models::Decoder load_student(const RankContext& context, parallel::World& world,
                             const std::filesystem::path& checkpoint) {
  const RoleOptions& role = context.role_options();
  check_checkpoint_kind(checkpoint, context.recipe);
  // An adapter's checkpoint holds no model: it is attached to the one that the recipe names.
  const std::string model = checkpoint.empty() || role.lora ? role.model : checkpoint.string();
  context.report("loading", 0, model);
  const at::ScalarType dtype = models::parse_dtype(std::string(enum_name(role.dtype)));
  const models::Placement place = models::Placement::of(world);
  const auto classifier = student_classifier(context.recipe);
  models::Decoder decoder =
      classifier ? models::load_classifier(model, dtype, *classifier, place, world.device())
                 : models::load_decoder(model, dtype, place, world.device());
  if (role.lora) {
    const std::string from =
        checkpoint.empty() ? role.lora->adapter.value_or("") : checkpoint.string();
    if (from.empty())
      models::attach_new_adapter(decoder, student_adapter(context.recipe),
                                 static_cast<uint64_t>(context.recipe.seed));
    else
      models::attach_adapter(decoder, from);
  }
  decoder.set_gradient_checkpointing(context.recipe.train.gradient_checkpointing,
                                     context.recipe.train.gradient_checkpointing_every);
  return decoder;
}

LoopState starting_state(const RankContext& context, const std::filesystem::path& checkpoint,
                         const std::string& day, parallel::Layout layout) {
  const uint64_t seed = static_cast<uint64_t>(context.recipe.seed);
  layout.threads = context.threads;
  const std::string adapter = first_adapter(context, checkpoint);
  if (checkpoint.empty())
    return {.seed = seed, .layout = layout, .template_day = day, .first_adapter = adapter};
  LoopState state = read_loop_state(checkpoint);
  if (state.seed != seed)
    throw Error(ErrorCode::kInvalidArgument, "the run was started with seed " +
                                                 std::to_string(state.seed) +
                                                 "; a resumed run must keep it");
  if (state.first_adapter.value_or(adapter) != adapter)
    throw Error(ErrorCode::kInvalidArgument,
                "the reference changed since " + checkpoint.string() +
                    ": it is the adapter that the run began with; restore "
                    "roles.student.lora.adapter and what is in its folder, or start a new run");
  const std::string now = layout_text(layout), then = layout_text(state.layout);
  if (now != then) {
    RETORT_LOG(kWarning) << "resuming with " << now << " a run that had " << then
                         << ": the numbers will agree, but not in their last bits";
  }
  state.layout = layout;
  state.template_day = day;
  state.first_adapter = adapter;
  return state;
}

void check_resumed_rows(const RankContext& context, const std::filesystem::path& checkpoint,
                        const RecipeRun& work, parallel::World& world) {
  const LoopState state = read_loop_state(checkpoint);
  const data::RowSet& rows = work.rows();
  if (state.data_fingerprint == rows.fingerprint()) return;
  if (!state.rows)
    throw Error(ErrorCode::kInvalidArgument,
                "the training rows are not those of " + checkpoint.string() +
                    ": another version of retort wrote it, which may have cut the same rows "
                    "otherwise, or the data, its columns, the tokenizer or the chat template's "
                    "settings changed; go on with the version that wrote it, restore them, or "
                    "start a new run");

  const data::ResumedAt at{.checkpoint = checkpoint.string(),
                           .seed = state.seed,
                           .shuffle = context.recipe.data.shuffle,
                           .epoch = state.cursor.epoch,
                           .used_places = work.used_places(state.cursor),
                           .hashes = context.run_folder / "cache"};
  // Every rank compares its own rows. The vote behind it ends all ranks where one of them refuses.
  std::vector<std::string> told;
  std::exception_ptr failure;
  try {
    told = data::compare_rows(*state.rows, rows, at);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  parallel::run_on_all(world.all(), [&] {
    if (failure) std::rethrow_exception(failure);
  });
  if (world.rank() != 0) return;
  if (!told.empty() && !context.recipe.train.max_steps)
    told.push_back(
        "train.num_train_epochs: the number of steps, and with it the learning rate's schedule, "
        "follows from the data as they are now, and may differ from that of " +
        checkpoint.string());
  for (const std::string& said : told) {
    RETORT_LOG(kWarning) << said;
    context.report("loading", state.step, said);
  }
}

}  // namespace retort::recipes
