// How the rows of a device's step are parted, and what goes there: on the CPU, where the numbers of
// a plan stay where they are.
#include "models/generation/step_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace retort::models {
namespace {

using Numbers = std::vector<int64_t>;
using Kind = StepPart::Kind;

constexpr int64_t kBlock = 4;

Numbers numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).reshape({-1});
  const auto* begin = flat.const_data_ptr<int64_t>();
  return {begin, begin + flat.numel()};
}

// Sequence s has blocks 10 s, 10 s + 1, ...; its token at position p has the id 100 s + p.
struct Step {
  void add(int64_t sequence, int64_t first_position, int64_t count, bool last = true) {
    spans.push_back({.first_row = static_cast<int64_t>(ids.size()),
                     .count = count,
                     .first_position = first_position,
                     .table = tables.at(static_cast<size_t>(sequence)).data(),
                     .last = last});
    for (int64_t i = 0; i < count; ++i)
      ids.push_back(static_cast<int32_t>(100 * sequence + first_position + i));
  }
  StepPlan plan(int64_t max_decoded) const {
    StepPlan made(ids, spans, kBlock, max_decoded);
    made.send(at::kCPU);
    return made;
  }
  static std::vector<std::vector<int32_t>> make_tables() {
    std::vector<std::vector<int32_t>> made(8, std::vector<int32_t>(10));
    for (size_t s = 0; s < made.size(); ++s)
      std::iota(made[s].begin(), made[s].end(), static_cast<int32_t>(10 * s));
    return made;
  }

  std::vector<std::vector<int32_t>> tables = make_tables();
  std::vector<int32_t> ids;
  std::vector<StepSpan> spans;
};

// One of each sort, in an order in which none of them are neighbours.
Step mixed_step() {
  Step step;
  step.add(1, 0, 3);         // begins
  step.add(2, 5, 1);         // one row
  step.add(3, 4, 2, false);  // behind a cached block
  step.add(4, 0, 2, false);  // begins
  step.add(5, 2, 1);         // one row
  step.add(6, 8, 3);         // behind two
  return step;
}

TEST(StepPlan, PutsSpansThatAttendAlikeSideBySide) {
  const Step step = mixed_step();
  const StepPlan plan = step.plan(64);
  EXPECT_EQ(numbers_of(plan.ids()),
            (Numbers{205, 502, 100, 101, 102, 400, 401, 304, 305, 608, 609, 610}));
  EXPECT_EQ(numbers_of(plan.positions()), (Numbers{5, 2, 0, 1, 2, 0, 1, 4, 5, 8, 9, 10}));
  EXPECT_EQ(numbers_of(plan.slots()),
            (Numbers{85, 202, 40, 41, 42, 160, 161, 124, 125, 248, 249, 250}));
  // In the order of the spans: 1, 2, 5 and 6.
  EXPECT_EQ(numbers_of(plan.last_rows()), (Numbers{4, 0, 1, 11}));

  const std::vector<StepPart> parts = plan.parts();
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[0].kind, Kind::kDecoded);
  EXPECT_EQ(parts[0].rows(), 2);
  EXPECT_EQ(numbers_of(parts[0].tables), (Numbers{20, 21, 50, 0}));
  EXPECT_EQ(numbers_of(parts[0].lengths), (Numbers{6, 3}));

  // Both beginnings in one part.
  EXPECT_EQ(parts[1].kind, Kind::kPacked);
  EXPECT_EQ(parts[1].first_row, 2);
  EXPECT_EQ(parts[1].rows(), 5);
  EXPECT_EQ(parts[1].offsets, (Numbers{0, 3, 5}));
  EXPECT_EQ(parts[1].offsets_there.scalar_type(), at::kInt);
  EXPECT_EQ(numbers_of(parts[1].offsets_there), parts[1].offsets);

  // What is behind a cached beginning is gathered with it, each by itself.
  EXPECT_EQ(parts[2].kind, Kind::kGathered);
  EXPECT_EQ(parts[2].first_row, 7);
  EXPECT_EQ(numbers_of(parts[2].slots), (Numbers{120, 121, 122, 123, 124, 125}));
  EXPECT_EQ(numbers_of(parts[2].positions), (Numbers{4, 5}));
  EXPECT_EQ(parts[3].first_row, 9);
  EXPECT_EQ(parts[3].rows(), 3);
  EXPECT_EQ(parts[3].keys, 11);
  EXPECT_EQ(numbers_of(parts[3].slots).back(), 250);
}

// A shorter sequence repeats its first key.
TEST(StepPlan, GathersRowsTogetherWhereNothingIsDecoded) {
  const StepPlan plan = mixed_step().plan(0);
  const std::vector<StepPart> parts = plan.parts();
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[0].kind, Kind::kGathered);
  EXPECT_EQ(parts[0].sequences, 2);
  EXPECT_EQ(numbers_of(parts[0].slots),
            (Numbers{80, 81, 82, 83, 84, 85, 200, 201, 202, 200, 200, 200}));
  EXPECT_EQ(parts[1].kind, Kind::kPacked);
}

TEST(StepPlan, AsksForAllRowsInTheirOrder) {
  Step step;
  for (int64_t s = 0; s < 5; ++s)
    step.add(s, 3 + s, 1);
  const StepPlan plan = step.plan(2);
  EXPECT_FALSE(plan.last_rows().defined());
  EXPECT_EQ(numbers_of(plan.ids()), (Numbers{3, 104, 205, 306, 407}));
  std::vector<int64_t> sequences;
  for (const StepPart& part : plan.parts())
    sequences.push_back(part.sequences);
  EXPECT_EQ(sequences, (Numbers{2, 2, 1})) << "at most two are decoded at once";
}

}  // namespace
}  // namespace retort::models
