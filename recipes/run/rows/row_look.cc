#include "recipes/run/rows/row_look.h"

#include <algorithm>
#include <exception>
#include <string>

#include "base/log.h"
#include "parallel/vote.h"
#include "recipes/type/registry.h"

namespace retort::recipes {

RowLook::RowLook(const RankContext& context, parallel::World& world)
    : context_(context), world_(world) {
  if (world.rank() != 0) return;
  const Recipe& recipe = context.recipe;
  scan_ = std::make_unique<data::RowScan>(
      data::RowScan::Options{.train = recipe.data.train,
                             .eval = recipe.data.eval,
                             .check = recipe_type(recipe).row_check(recipe),
                             .cache = context.run_folder / "cache"});
}

bool RowLook::refuses() const {
  return context_.recipe.data.on_bad_sample == data::OnBadSample::kError;
}

// Tells once what was found, when the look is done.
void RowLook::tell(const std::string& state, int64_t step) {
  if (told_) return;
  told_ = true;
  try {
    scan_->findings();
  } catch (const std::exception& error) {
    // This does not end the run, which meets the same error if it comes to that file.
    RETORT_LOG(kWarning) << "not all data were looked at: " << error.what();
    return;
  }
  const data::RowFindings& found = scan_->findings();
  RETORT_LOG(kInfo) << "all data were looked at: " << found.text() << ", " << found.bad.count()
                    << " bad";
  bad_ = found.bad.count() > 0 && refuses();
  if (found.bad.count() == 0 || refuses()) return;
  const std::string said =
      std::to_string(found.bad.count()) + " of " + std::to_string(found.rows) +
      " rows are bad and are left out (data.on_bad_sample: skip); the first: " +
      found.bad.messages().front();
  RETORT_LOG(kWarning) << said;
  context_.report(state, step, said);
}

void RowLook::wait_before_training(Duration most) {
  // The other ranks are at the vote meanwhile, which has the timeout of a collective.
  most = std::min(most, context_.recipe.launch.collective_timeout / 2);
  parallel::run_on_all(world_.all(), [&] {
    if (!scan_) return;
    if (!scan_->wait(most)) {
      RETORT_LOG(kInfo) << "looked at " << scan_->num_looked_at() << " of " << scan_->num_rows()
                        << " rows of data.train and data.eval so far, and goes on beside training";
      return;
    }
    tell("loading", 0);
    if (bad_) scan_->findings().bad.refuse(scan_->findings().rows);
  });
}

bool RowLook::must_end(int64_t step) {
  // Only the first rank has the look; the loop makes its answer that of all ranks.
  if (scan_ && !told_ && scan_->wait(Duration(0))) tell("training", step);
  return bad_;
}

void RowLook::refuse_if_bad() {
  parallel::run_on_all(world_.all(), [&] {
    if (scan_ && bad_) scan_->findings().bad.refuse(scan_->findings().rows);
  });
}

void RowLook::end() {
  if (!scan_) return;
  if (!told_ && !scan_->wait(Duration(0))) {
    RETORT_LOG(kInfo) << "the run ends before all its rows were looked at: "
                      << scan_->num_looked_at() << " of " << scan_->num_rows();
  }
  scan_.reset();
}

}  // namespace retort::recipes
