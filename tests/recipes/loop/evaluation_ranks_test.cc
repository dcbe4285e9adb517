// The evaluations of dpo and kto on three data-parallel ranks: every rank reports what one rank
// reports that has all rows.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "recipes/dpo/objective.h"
#include "recipes/kto/objective.h"
#include "tests/recipes/loop/rank_threads.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/support/folder_fixture.h"

namespace retort::recipes {
namespace {

using test::nano_llama;

constexpr int64_t kRanks = 3;
constexpr int64_t kMaxLength = 32;

std::vector<int32_t> ids(int32_t first, int32_t count) {
  std::vector<int32_t> result;
  for (int32_t i = 0; i < count; ++i)
    result.push_back((first + 11 * i) % 67);
  return result;
}

class EvaluationRanksTest : public test::FolderTest {
 protected:
  // What an evaluation is of, on the rank that `world` says.
  using Evaluate = std::function<MetricsRow(
      const roles::Trainer& student, std::unique_ptr<Reference> reference, parallel::World& world)>;

  // The row of each of `dp` ranks.
  std::vector<MetricsRow> rows_of(int64_t dp, const Evaluate& evaluate) const {
    std::vector<MetricsRow> rows(static_cast<size_t>(dp));
    const auto errors = test::run_rank_threads(dp, [&](parallel::World& world) {
      const int64_t rank = world.dp().rank();
      auto role = std::make_unique<test::FakeFrozenRole>(
          nano_llama(2), roles::PayloadSpec{.kind = roles::PayloadKind::kTargetLogProbs});
      const std::string name = std::to_string(dp) + "-" + std::to_string(rank);
      auto cache = std::make_unique<ReferenceCache>(folder_ / name, std::string(64, 'a'),
                                                    folder_ / ("run-" + name), rank);
      const roles::Trainer student(nano_llama(1), world, {});
      rows.at(static_cast<size_t>(rank)) = evaluate(
          student, std::make_unique<Reference>(std::move(role), &world.tp(), std::move(cache)),
          world);
    });
    for (const std::optional<Error>& error : errors)
      EXPECT_FALSE(error) << error->what();
    return rows;
  }

  // The same names and numbers on every rank as where one rank has all.
  void expect_ranks_report_as_one(const Evaluate& evaluate) const {
    const MetricsRow whole = rows_of(1, evaluate).at(0);
    ASSERT_GT(whole.values.size(), 8u);
    for (const MetricsRow& row : rows_of(kRanks, evaluate)) {
      ASSERT_EQ(row.values.size(), whole.values.size());
      for (size_t i = 0; i < whole.values.size(); ++i) {
        EXPECT_EQ(row.values[i].first, whole.values[i].first);
        EXPECT_NEAR(number(row, i), number(whole, i), 1e-5) << whole.values[i].first;
      }
    }
  }

  static double number(const MetricsRow& row, size_t index) {
    return std::visit([](auto value) { return static_cast<double>(value); },
                      row.values.at(index).second);
  }
};

// Row i is for rank i mod the number of ranks, as in a run; each rank has as many micro-batches.
template <class Row, class Batch>
std::vector<Batch> share_of(const std::vector<Row>& rows, const parallel::World& world,
                            const std::function<Batch(std::vector<Row>)>& make_batch) {
  const auto ranks = static_cast<size_t>(world.options().layout.dp);
  std::vector<Batch> batches;
  for (size_t first = 0; first < rows.size(); first += ranks) {
    const size_t mine = first + static_cast<size_t>(world.coordinate().dp);
    batches.push_back(
        make_batch(mine < rows.size() ? std::vector<Row>{rows[mine]} : std::vector<Row>{}));
  }
  return batches;
}

// Four pairs for three ranks; the cross-entropy on chosen completions is a mean over their tokens,
// and the pairs that aot sorts are those of all ranks.
TEST_F(EvaluationRanksTest, DpoReportsThePairsOfAllRanks) {
  using Loss = losses::PreferenceLoss;
  std::vector<data::PreferenceSample> pairs(4);
  for (int32_t i = 0; i < 4; ++i) {
    data::PreferenceSample& pair = pairs[static_cast<size_t>(i)];
    pair.prompt_ids = ids(3 + i, 2 + i);
    pair.chosen_ids = ids(20 + 5 * i, 1 + 2 * i);
    pair.rejected_ids = i == 3 ? pair.chosen_ids : ids(40 + i, 5 - i);
    pair.identical = i == 3;
  }

  expect_ranks_report_as_one([&](const roles::Trainer& student,
                                 std::unique_ptr<Reference> reference, parallel::World& world) {
    DpoObjective objective(
        {}, std::move(reference),
        {.loss = {.loss_type = {Loss::kSigmoid, Loss::kSft, Loss::kAot, Loss::kAotUnpaired},
                  .loss_weights = {1, 1, 2, 3},
                  .beta = 0.5},
         .student = &student,
         .dp_rank = world.coordinate().dp,
         .dp_size = world.options().layout.dp});
    const MetricsRow row =
        objective.evaluate(7, student,
                           share_of<data::PreferenceSample, data::PairMicroBatch>(
                               pairs, world, data::make_pair_micro_batch),
                           world);
    EXPECT_EQ(row.step, 7);
    return row;
  });
}

// Of the last two of five rows only two ranks have one; rank 2 has desirable rows alone.
TEST_F(EvaluationRanksTest, KtoReportsTheRowsOfAllRanksAndOneDistanceFromTheReference) {
  std::vector<data::UnpairedRow> rows(5);
  for (int32_t i = 0; i < 5; ++i) {
    data::UnpairedRow& row = rows[static_cast<size_t>(i)];
    row.sample.prompt_ids = ids(3 + i, 2 + i);
    row.sample.completion_ids = ids(20 + 5 * i, 1 + i);
    row.sample.desirable = i % 2 == 0;
    row.other_completion_ids = ids(50 + 3 * i, 4 - i % 3);
  }
  const auto make_batch = [](std::vector<data::UnpairedRow> some) {
    return data::make_unpaired_micro_batch(std::move(some), kMaxLength);
  };

  double distance = 0;
  expect_ranks_report_as_one([&](const roles::Trainer& student,
                                 std::unique_ptr<Reference> reference, parallel::World& world) {
    KtoObjective objective({}, student, std::move(reference),
                           {.loss = {.beta = 0.5, .undesirable_weight = 0.75},
                            .dp_rank = world.coordinate().dp,
                            .dp_size = world.options().layout.dp});
    MetricsRow row = objective.evaluate(
        7, share_of<data::UnpairedRow, data::UnpairedMicroBatch>(rows, world, make_batch), world);
    if (world.options().layout.dp == 1)
      for (const auto& [name, value] : row.values)
        if (name == "eval_kl") distance = std::get<double>(value);
    return row;
  });
  EXPECT_GT(distance, 0.01) << "or the test does not show how it is summed";
}

}  // namespace
}  // namespace retort::recipes
