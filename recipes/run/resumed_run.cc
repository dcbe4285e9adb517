#include "recipes/run/resumed_run.h"

#include <exception>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "parallel/vote.h"
#include "recipes/data/resumed_rows.h"
#include "recipes/run/loop_state.h"

namespace retort::recipes {

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
