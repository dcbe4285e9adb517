// The training loop in one process, around an objective that is its own data.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <variant>

#include "base/file.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "recipes/run/loop/train_loop.h"
#include "tests/recipes/loop/numbered_objective.h"
#include "tests/roles/nano_model.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

namespace fs = std::filesystem;

class TrainLoopTest : public test::FolderTest {
 protected:
  // A run in a folder of its own, from its newest checkpoint on.
  struct Run {
    TrainLoopResult result;
    at::Tensor parameters;
    std::vector<MetricsRow> rows;
    std::vector<std::string> told;     // "step 1", "save 2", "saved 2" as they came
    std::vector<int64_t> went_wrong;   // steps after which that was told
    std::vector<int64_t> save_errors;  // steps whose checkpoint could not be saved
  };
  Run run(const std::string& name, const TrainLoopOptions& options, NumberedObjective& objective,
          const std::function<bool(int64_t)>& stop_after = {}) {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    models::Decoder decoder =
        models::Decoder::random(roles::nano_model(models::Family::kQwen3, true, 2), 7, dtype_);
    LoopState start{.seed = 1, .layout = {}};
    const auto latest = latest_checkpoint(folder);
    if (latest) {
      decoder = models::load_decoder(latest->path.string(), dtype_);
      start = read_loop_state(latest->path);
    }

    roles::Trainer trainer(std::move(decoder), world_,
                           {.schedule = {.learning_rate = 1e-2, .max_steps = schedule_steps_},
                            .loss_scale = loss_scale_});
    if (latest) trainer.load_state(latest->path / "state");
    CheckpointStore checkpoints(folder, tokenizer(), {});
    Run run;
    int64_t done = start.step;
    run.result = run_train_loop(
        {.trainer = trainer,
         .world = world_,
         .objective = objective,
         .evaluator =
             [&](int64_t step) {
               return MetricsRow{.step = step, .values = {{"eval_loss", eval_loss_(step)}}};
             },
         .checkpoints = checkpoints},
        start, options,
        {.stop_requested = [&] { return stop_after && stop_after(done); },
         .add_metrics = [](MetricsRow& row) { row.add("added", 1.0); },
         .on_metrics = [&](const MetricsRow& row) { run.rows.push_back(row); },
         .on_divergence = [&](int64_t step, const std::string&) { run.went_wrong.push_back(step); },
         .on_save_error = [&](int64_t step,
                              const std::string&) { run.save_errors.push_back(step); },
         .on_step =
             [&](int64_t step) {
               done = step;
               run.told.push_back("step " + std::to_string(step));
             },
         .on_save =
             [&](int64_t step) {
               run.told.push_back("save " + std::to_string(step));
               limit_files(without_disk_.contains(step));
             },
         .on_saved =
             [&](int64_t step) {
               run.told.push_back("saved " + std::to_string(step));
               limit_files(false);
             }});

    std::vector<at::Tensor> flat;
    for (const auto& parameter : trainer.decoder().parameters())
      flat.push_back(parameter.value.detach().flatten());
    run.parameters = at::cat(flat);
    return run;
  }

  // The values of the rows that have it, in order.
  static std::vector<double> metric(const Run& run, const std::string& name) {
    std::vector<double> values;
    for (const MetricsRow& row : run.rows)
      for (const auto& [key, value] : row.values)
        if (key == name)
          values.push_back(std::visit([](auto one) { return static_cast<double>(one); }, value));
    return values;
  }

  // Files of this process that are written do not grow beyond 1,000 bytes, or have no limit.
  static void limit_files(bool limited) {
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = limited ? rlim_t{1000} : limit.rlim_max;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  void TearDown() override { limit_files(false); }

  static fs::path tokenizer() { return test::source_folder() / "tests/recipes/goldens/llama"; }

  parallel::World world_{{.role = "student", .layout = {}}};
  int64_t schedule_steps_ = 6;
  at::ScalarType dtype_ = at::kFloat;
  std::set<int64_t> without_disk_;  // steps at which nothing can be saved
  parallel::LossScaler::Options loss_scale_;
  std::function<double(int64_t step)> eval_loss_ = [](int64_t) { return 0.5; };
};

TEST_F(TrainLoopTest, SavesEvaluatesAndLogsWhenAsked) {
  NumberedObjective objective;
  const Run whole = run(
      "whole", {.max_steps = 5, .logging_steps = 2, .eval_steps = 3, .save_steps = 2}, objective);
  EXPECT_EQ(whole.result.step, 5);
  EXPECT_FALSE(whole.result.stopped_early);
  EXPECT_EQ(objective.steps, (std::vector<int64_t>{1, 2, 3, 4, 5}));

  std::vector<int64_t> saved;
  for (const CheckpointEntry& entry : list_checkpoints(folder_ / "whole"))
    saved.push_back(entry.step);
  EXPECT_EQ(saved, (std::vector<int64_t>{2, 4, 5}));
  EXPECT_TRUE(fs::exists(folder_ / "whole" / "final" / "config.json"));

  EXPECT_EQ(whole.told,
            (std::vector<std::string>{"step 1", "step 2", "save 2", "saved 2", "step 3", "step 4",
                                      "save 4", "saved 4", "step 5", "save 5", "saved 5"}));

  std::vector<std::pair<int64_t, bool>> rows;  // step, whether of an evaluation
  for (const MetricsRow& row : whole.rows) {
    rows.emplace_back(row.step, row.values.front().first == "eval_loss");
    EXPECT_EQ(row.values.back().first, rows.back().second ? "eval_loss" : "added");
  }
  const std::vector<std::pair<int64_t, bool>> expected{
      {2, false}, {3, true}, {4, false}, {5, false}, {5, true}};
  EXPECT_EQ(rows, expected);
}

TEST_F(TrainLoopTest, StopsWithACheckpointAndGoesOnToTheSameBits) {
  NumberedObjective uninterrupted;
  const Run whole = run("whole", {.max_steps = 6}, uninterrupted);

  NumberedObjective before;
  const Run stopped =
      run("stopped", {.max_steps = 6}, before, [](int64_t done) { return done == 4; });
  EXPECT_TRUE(stopped.result.stopped_early);
  EXPECT_EQ(stopped.result.step, 4);
  EXPECT_FALSE(fs::exists(folder_ / "stopped" / "final"));
  EXPECT_FALSE(at::equal(stopped.parameters, whole.parameters));

  NumberedObjective after;
  const Run resumed = run("stopped", {.max_steps = 6}, after);
  EXPECT_EQ(after.steps, (std::vector<int64_t>{5, 6}));
  EXPECT_TRUE(at::equal(resumed.parameters, whole.parameters));
}

TEST_F(TrainLoopTest, AFailureKeepsItsCodeAndLeavesTheLastCheckpoint) {
  NumberedObjective objective;
  objective.fail_at = 4;
  EXPECT_EQ(test::code_of([&] { run("failed", {.max_steps = 6, .save_steps = 2}, objective); }),
            ErrorCode::kMismatch);
  EXPECT_EQ(latest_checkpoint(folder_ / "failed")->step, 2);
}

// Files may not grow at the steps `without_disk`, as if the disk were full.
TEST_F(TrainLoopTest, ACheckpointThatCannotBeSavedEndsTheRunOrIsTold) {
  ::signal(SIGXFSZ, SIG_IGN);
  const auto attempt = [&](const std::string& name, std::set<int64_t> without_disk, bool goes_on) {
    without_disk_ = std::move(without_disk);
    NumberedObjective objective;
    return run(name, {.max_steps = 6, .save_steps = 2, .continue_on_save_error = goes_on},
               objective);
  };
  const auto code = [&](const std::string& name, std::set<int64_t> steps, bool goes_on) {
    const ErrorCode code = test::code_of([&] { attempt(name, std::move(steps), goes_on); });
    limit_files(false);
    return code;
  };

  EXPECT_EQ(code("stop", {4}, false), ErrorCode::kResourceExhausted);
  EXPECT_EQ(latest_checkpoint(folder_ / "stop")->step, 2);

  const Run whole = attempt("whole", {}, true), without = attempt("without", {2, 4}, true);
  EXPECT_EQ(without.result.step, 6);
  EXPECT_TRUE(at::equal(without.parameters, whole.parameters));
  EXPECT_EQ(without.save_errors, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(list_checkpoints(folder_ / "without").size(), 1U);
  EXPECT_EQ(fs::read_symlink(folder_ / "without/final"), "checkpoint-6");

  // A run without its last checkpoint is not done.
  EXPECT_EQ(code("last", {6}, true), ErrorCode::kResourceExhausted);
  EXPECT_EQ(latest_checkpoint(folder_ / "last")->step, 4);
}

TEST_F(TrainLoopTest, ALossThatIsNotFiniteNamesItsSamples) {
  NumberedObjective objective;
  objective.infinite_at = {3};
  const std::string message =
      test::message_of([&] { run("infinite", {.max_steps = 6}, objective); });
  EXPECT_NE(message.find("row 3"), std::string::npos) << message;
}

// Neither the parameters nor the optimizer's state nor the learning rate know of a skipped step.
TEST_F(TrainLoopTest, ASkippedStepLeavesNoTrace) {
  NumberedObjective objective, shorter;
  objective.infinite_at = {2};
  objective.lifted_at = 4;
  objective.steep_at = 5;
  shorter.without = {2, 4, 5};
  schedule_steps_ = 4;
  const Run skipping = run("skipping", {.max_steps = 7, .skip_nonfinite_steps = 2}, objective);
  const Run without = run("without", {.max_steps = 4}, shorter);
  EXPECT_EQ(shorter.steps, (std::vector<int64_t>{1, 3, 6, 7}));
  EXPECT_TRUE(at::equal(skipping.parameters, without.parameters));

  const std::vector<double> counts{0, 1, 1, 2, 3, 3, 3};
  EXPECT_EQ(metric(skipping, "skipped_steps"), counts);
  EXPECT_EQ(metric(without, "skipped_steps"), std::vector<double>());
  std::vector<double> rates = metric(skipping, "learning_rate");
  for (const auto step : {4, 3, 1})
    rates.erase(rates.begin() + step);
  EXPECT_EQ(rates, metric(without, "learning_rate"));
}

TEST_F(TrainLoopTest, OneMoreInARowThanMayBeSkippedEndsTheRun) {
  NumberedObjective objective;
  objective.infinite_at = {2, 4, 5, 6};
  const std::string message =
      test::message_of([&] { run("row", {.max_steps = 9, .skip_nonfinite_steps = 2}, objective); });
  EXPECT_NE(message.find("row 6"), std::string::npos) << message;

  NumberedObjective steep;
  steep.steep_at = 2;
  EXPECT_NE(test::message_of([&] {
              run("steep", {.max_steps = 9}, steep);
            }).find("the gradient is not finite in"),
            std::string::npos);
}

// What a resumed run may still skip is what the run had left.
TEST_F(TrainLoopTest, TheCountOfSkippedStepsOutlivesAResume) {
  const TrainLoopOptions options{.max_steps = 9, .exit_interval = 3, .skip_nonfinite_steps = 2};
  NumberedObjective before, after;
  before.infinite_at = after.infinite_at = {2, 3, 4};
  EXPECT_TRUE(run("row", options, before).result.stopped_early);
  const std::string message = test::message_of([&] { run("row", options, after); });
  EXPECT_NE(message.find("row 4"), std::string::npos) << message;
}

TEST_F(TrainLoopTest, EndsEverySoManyStepsAndGoesOnToTheSameBits) {
  NumberedObjective uninterrupted, parts;
  const Run whole = run("whole", {.max_steps = 6}, uninterrupted);
  const TrainLoopOptions options{.max_steps = 6, .exit_interval = 2};
  for (const int64_t step : {2, 4}) {
    const Run part = run("parts", options, parts);
    EXPECT_TRUE(part.result.stopped_early);
    EXPECT_EQ(part.result.step, step);
    EXPECT_EQ(latest_checkpoint(folder_ / "parts")->step, step);
    EXPECT_FALSE(fs::exists(folder_ / "parts" / "final"));
  }

  // The last step is the end of the run, not one more stop.
  const Run last = run("parts", options, parts);
  EXPECT_FALSE(last.result.stopped_early);
  EXPECT_EQ(parts.steps, uninterrupted.steps);
  EXPECT_TRUE(at::equal(last.parameters, whole.parameters));
  EXPECT_TRUE(fs::exists(folder_ / "parts" / "final" / "config.json"));
}

// A gradient of 0 in 20 steps, from the third on.
TEST_F(TrainLoopTest, TellsOfARunThatLearnsNothingAndStopsItWhereAsked) {
  schedule_steps_ = 100;
  NumberedObjective objective;
  objective.flat_from = 3;
  const Run told = run("told", {.max_steps = 26}, objective);
  EXPECT_EQ(told.went_wrong, (std::vector<int64_t>{22}));
  EXPECT_EQ(told.result.step, 26);
  EXPECT_FALSE(told.result.stopped_early);
  EXPECT_FALSE(told.result.stopped_by_divergence);
  EXPECT_EQ(told.result.divergence,
            "nothing is learned any more: the gradient has been 0 since step 3");

  const Run stopped = run("stopped", {.max_steps = 26, .stop_if_diverged = true}, objective);
  EXPECT_EQ(stopped.result.step, 22);
  EXPECT_TRUE(stopped.result.stopped_early);
  EXPECT_TRUE(stopped.result.stopped_by_divergence);
  EXPECT_EQ(latest_checkpoint(folder_ / "stopped")->step, 22);
  EXPECT_FALSE(fs::exists(folder_ / "stopped" / "final"));

  NumberedObjective well;
  EXPECT_EQ(run("well", {.max_steps = 26, .stop_if_diverged = true}, well).result.divergence, "");
}

// The steps of a run's checkpoints.
std::vector<int64_t> saved_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(run))
    steps.push_back(entry.step);
  return steps;
}

TEST_F(TrainLoopTest, SavesTheBestModelAndEndsWhenNoneIsBetter) {
  eval_loss_ = [](int64_t step) { return step == 2 ? 0.25 : 0.5; };
  const TrainLoopOptions options{
      .max_steps = 9, .eval_steps = 1, .best = {.metric = "eval_loss", .patience = 3}};
  NumberedObjective objective;
  const Run early = run("early", options, objective);
  EXPECT_FALSE(early.result.stopped_early);
  EXPECT_EQ(early.result.step, 5);
  EXPECT_NE(early.result.ended_early.find("the best is 0.25, of step 2"), std::string::npos);
  EXPECT_EQ(saved_steps(folder_ / "early"), (std::vector<int64_t>{1, 2, 5}));
  EXPECT_EQ(fs::read_symlink(folder_ / "early/best"), "checkpoint-2");
  EXPECT_EQ(fs::read_symlink(folder_ / "early/final"), "checkpoint-5");

  // A run that has ended is not begun again.
  NumberedObjective after;
  const Run again = run("early", options, after);
  EXPECT_TRUE(after.steps.empty());
  EXPECT_EQ(again.result.step, 5);
  EXPECT_EQ(again.result.ended_early, early.result.ended_early);

  // With more patience it goes on, and what it has waited counts.
  TrainLoopOptions patient = options;
  patient.best.patience = 5;
  EXPECT_EQ(run("early", patient, after).result.step, 7);
}

TEST_F(TrainLoopTest, TheBestModelOutlivesAResume) {
  eval_loss_ = [](int64_t step) { return 1.0 / static_cast<double>(step % 4 + 3); };
  TrainLoopOptions options{
      .max_steps = 12, .eval_steps = 1, .best = {.metric = "eval_loss", .patience = 5}};
  NumberedObjective uninterrupted, parts;
  const Run whole = run("whole", options, uninterrupted);
  EXPECT_EQ(whole.result.step, 8) << "3, 7, 11 are best, and only the first is better";

  options.exit_interval = 1;
  Run part;
  do
    part = run("parts", options, parts);
  while (part.result.stopped_early);
  EXPECT_EQ(parts.steps, uninterrupted.steps);
  EXPECT_EQ(part.result.ended_early, whole.result.ended_early);
  EXPECT_TRUE(at::equal(part.parameters, whole.parameters));
  for (const char* link : {"best", "final"})
    EXPECT_EQ(fs::read_symlink(folder_ / "parts" / link),
              fs::read_symlink(folder_ / "whole" / link));
  EXPECT_EQ(read_file(folder_ / "parts/final/state/loop.json"),
            read_file(folder_ / "whole/final/state/loop.json"));
}

TEST_F(TrainLoopTest, EvaluatesBeforeTheFirstStepOfARunOnly) {
  const TrainLoopOptions options{
      .max_steps = 3, .exit_interval = 2, .eval_on_start = true, .best = {.metric = "eval_loss"}};
  eval_loss_ = [](int64_t step) { return step == 0 ? 0.0 : 0.5; };
  NumberedObjective objective;
  const Run first = run("parts", options, objective);
  ASSERT_EQ(first.rows.size(), 3u);
  EXPECT_EQ(first.rows.front().step, 0);
  EXPECT_EQ(first.rows.front().values.front().first, "eval_loss");
  const Run second = run("parts", options, objective);
  EXPECT_EQ(metric(second, "eval_loss"), (std::vector<double>{0.5}));
  EXPECT_EQ(fs::read_symlink(folder_ / "parts/best"), "checkpoint-3")
      << "there is no checkpoint of step 0";
}

TEST_F(TrainLoopTest, AMetricThatNoEvaluationHasIsRefused) {
  NumberedObjective objective;
  test::expect_refused("has no eval_reward; it has eval_loss", [&] {
    run("none", {.max_steps = 2, .eval_steps = 1, .best = {.metric = "eval_reward"}}, objective);
  });
}

// Of a run in float16: the numbers of the steps that its scale was too large for.
std::set<int64_t> overflowed_steps(const std::vector<double>& skipped) {
  std::set<int64_t> steps;
  for (size_t i = 0; i < skipped.size(); ++i)
    if (skipped[i] > (i == 0 ? 0 : skipped[i - 1])) steps.insert(static_cast<int64_t>(i) + 1);
  return steps;
}

// In float16 with a scale that is too large at first: the parameters and the norm of the gradient
// are those of a float32 run over the steps that were not skipped.
TEST_F(TrainLoopTest, AnOverflowInFloat16LeavesNoTrace) {
  NumberedObjective objective, shorter;
  const int64_t steps = 14;
  schedule_steps_ = steps;
  dtype_ = at::kHalf;
  loss_scale_ = {.initial_scale = 1 << 16, .window = 4};
  const Run half = run("half", {.max_steps = steps}, objective);
  const std::set<int64_t> overflowed = overflowed_steps(metric(half, "skipped_steps"));
  ASSERT_GE(overflowed.size(), 2u);
  ASSERT_LE(overflowed.size(), 9u);
  EXPECT_EQ(*overflowed.begin(), 1);

  dtype_ = at::kFloat;
  shorter.without = overflowed;
  const auto updates = steps - static_cast<int64_t>(overflowed.size());
  const Run wide = run("wide", {.max_steps = updates}, shorter);
  EXPECT_EQ(metric(wide, "loss_scale"), std::vector<double>());

  // The updates' own metrics.
  std::vector<double> rates = metric(half, "learning_rate"), norms = metric(half, "grad_norm"),
                      losses = metric(half, "loss");
  for (auto step = overflowed.rbegin(); step != overflowed.rend(); ++step)
    for (std::vector<double>* values : {&rates, &norms, &losses})
      values->erase(values->begin() + (*step - 1));
  EXPECT_EQ(rates, metric(wide, "learning_rate"));
  for (size_t i = 0; i < norms.size(); ++i) {
    // The last bits of float16 products are the processor's: 0.0206 on an AMD EPYC.
    EXPECT_NEAR(norms[i] / metric(wide, "grad_norm")[i], 1, 0.03) << i;
    EXPECT_NEAR(losses[i] / metric(wide, "loss")[i], 1, 0.02) << i;
  }
  const double off = (half.parameters.to(at::kFloat) - wide.parameters).norm().item<double>();
  EXPECT_LT(off, 0.01 * wide.parameters.norm().item<double>());
}

// Of a step whose gradient no scale mends.
TEST_F(TrainLoopTest, TheLeastLossScaleEndsTheRunByName) {
  dtype_ = at::kHalf;
  loss_scale_ = {.initial_scale = 4, .min_scale = 4};
  NumberedObjective steep, skipping;
  steep.steep_at = skipping.steep_at = 2;
  const std::string message = test::message_of([&] { run("refused", {.max_steps = 3}, steep); });
  EXPECT_NE(message.find("train.min_loss_scale"), std::string::npos) << message;
  const Run run_on = run("skipped", {.max_steps = 3, .skip_nonfinite_steps = 1}, skipping);
  EXPECT_EQ(metric(run_on, "skipped_steps"), (std::vector<double>{0, 1, 1}));
  EXPECT_EQ(metric(run_on, "loss_scale"), (std::vector<double>{4, 4, 4}));

  // Where it can still be lowered the step is skipped, though none may be otherwise.
  loss_scale_.initial_scale = 8;
  NumberedObjective lowered;
  lowered.steep_at = 2;
  EXPECT_EQ(metric(run("lowered", {.max_steps = 3}, lowered), "loss_scale"),
            (std::vector<double>{8, 8, 4}));
}

TEST_F(TrainLoopTest, TheLossScaleOutlivesAResume) {
  dtype_ = at::kHalf;
  loss_scale_ = {.initial_scale = 1 << 22, .window = 3};
  schedule_steps_ = 14;
  NumberedObjective objective, parts;
  const Run whole = run("whole", {.max_steps = 14}, objective);
  std::vector<double> scales;
  for (Run part; part.result.step < 14;) {
    part = run("parts", {.max_steps = 14, .exit_interval = 2}, parts);
    for (const double scale : metric(part, "loss_scale"))
      scales.push_back(scale);
    if (part.result.step == 14) {
      EXPECT_TRUE(at::equal(part.parameters, whole.parameters));
    }
  }
  EXPECT_EQ(scales, metric(whole, "loss_scale"));
}

}  // namespace
}  // namespace retort::recipes
