// Every layout that fits four processes trains like one process: loss, gradients and parameters
// over five steps.
//
// Four child processes run all layouts one after the other, each in a world of its own; each
// compares its slices with a trainer of one process that it runs itself, once for each model.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel/rank_process.h"
#include "tests/roles/layout_training.h"

namespace retort::roles {
namespace {

using parallel::Layout;
using parallel::World;
using parallel::testing::require;
using testing::LayoutCase;

constexpr int kProcesses = 4;

std::vector<LayoutCase> cases() {
  std::vector<LayoutCase> all;
  for (const int64_t tp : {1, 2, 4})
    for (const int64_t pp : {1, 2, 4})
      for (const int64_t dp : {1, 2})
        for (const bool sp : {false, true})
          for (const bool zero : {false, true}) {
            if (tp * pp * dp > kProcesses || (sp && tp == 1) || (zero && dp == 1)) continue;
            all.push_back({.layout = {.tp = tp,
                                      .pp = pp,
                                      .dp = dp,
                                      .sequence_parallel = sp,
                                      .distributed_optimizer = zero}});
            if (!zero && tp * pp > 1)
              all.push_back({.layout = all.back().layout,
                             .tied = true,
                             .checkpointing = sp,
                             .family = models::Family::kQwen2});
          }
  all.push_back({.layout = {.pp = 2, .virtual_pp = 2}});
  all.push_back(
      {.layout = {.tp = 2, .pp = 2, .sequence_parallel = true, .virtual_pp = 2}, .tied = true});
  all.push_back({.layout = {.tp = 4, .sequence_parallel = true}, .family = models::Family::kLlama});
  all.push_back({.layout = {.tp = 2, .pp = 2}, .family = models::Family::kLlama});
  for (const models::Family family :
       {models::Family::kPhi3, models::Family::kGemma2, models::Family::kGemma3}) {
    all.push_back({.layout = {.tp = 2, .pp = 2, .sequence_parallel = true}, .family = family});
    all.push_back({.layout = {.tp = 4}, .tied = true, .checkpointing = true, .family = family});
  }

  // Adapters: factors that are whole on each tp rank, split, of copied key and value heads.
  for (const Layout& layout : std::vector<Layout>{
           {.dp = 2},
           {.dp = 2, .distributed_optimizer = true},
           {.tp = 2},
           {.tp = 4},
           {.tp = 2, .sequence_parallel = true},
           {.tp = 4, .sequence_parallel = true},
           {.pp = 2},
           {.pp = 4},
           {.pp = 2, .virtual_pp = 2},
           {.tp = 2, .pp = 2},
           {.tp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true},
           {.pp = 2, .dp = 2, .distributed_optimizer = true}})
    for (const bool tied : {false, true})
      all.push_back({.layout = layout,
                     .tied = tied,
                     .checkpointing = tied,
                     .family = tied ? models::Family::kQwen2 : models::Family::kLlama,
                     .lora = true});
  return all;
}

}  // namespace

void matrix_scenario() {
  const World::Options given = parallel::testing::child_world_options();
  int64_t index = 0;
  testing::SingleRuns singles;
  for (const LayoutCase& c : cases()) {
    World::Options options = given;
    options.store_prefix += "case-" + std::to_string(index++) + "/";
    if (options.rank < c.layout.world_size())
      testing::compare_with_one_process(c, options, singles, parallel::Device::kCpu);
  }
}

// A gradient that is not finite is named on every rank, also where its parameter is not.
void not_finite_scenario() {
  World world(parallel::testing::child_world_options());
  Trainer trainer(models::Decoder::random(testing::windowed_nano(false, models::Family::kQwen3), 7,
                                          at::kFloat, models::Placement::of(world)),
                  world, testing::layout_trainer_options(world.options().layout));
  const models::PackedTokens tokens = testing::tokens_of(0, 1);
  trainer.begin_step();
  trainer.run_pipeline(
      1, [&](size_t) -> const models::PackedTokens& { return tokens; },
      [&](size_t, const at::Tensor& hidden) {
        return testing::loss_of(trainer.decoder().head(), hidden, tokens);
      });
  for (size_t i = 0; i < trainer.buckets().size(); ++i)
    if (trainer.buckets().parameter(i).name == "model.norm.weight")
      trainer.buckets().main_grad(i).fill_(INFINITY);
  const Error error = parallel::testing::error_of([&] { trainer.finish_step(1); });
  require(error.code() == ErrorCode::kInvalidArgument, error.what());
  require(std::string(error.what()).find("model.norm.weight") != std::string::npos, error.what());
}

TEST(Layouts, NameWhatIsNotFiniteOnEveryRank) {
  const parallel::StoreServer store("127.0.0.1");
  auto ranks =
      parallel::testing::spawn_ranks(store, {.scenario = "not_finite", .layout = {.pp = 2}}, 2);
  parallel::testing::expect_success(std::move(ranks), std::chrono::seconds(60));
}

TEST(Layouts, TrainLikeOneProcess) {
  const parallel::StoreServer store("127.0.0.1");
  auto ranks = parallel::testing::spawn_ranks(
      store, {.scenario = "matrix", .layout = {.dp = kProcesses}}, kProcesses);
  parallel::testing::expect_success(std::move(ranks), std::chrono::seconds(240));
}

}  // namespace retort::roles

int main(int argc, char** argv) {
  return retort::parallel::testing::ranks_or_tests(
      argc, argv,
      {{"matrix", retort::roles::matrix_scenario},
       {"not_finite", retort::roles::not_finite_scenario}});
}
