// state/loop.json: what one version writes the next ones read, and nothing else is taken for it.
#include "recipes/run/checkpoints/loop_state.h"

#include <gtest/gtest.h>

#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

class LoopStateTest : public FolderTest {
 protected:
  recipes::LoopState read(const std::string& text) {
    put(folder_ / "checkpoint-7" / "state" / "loop.json", text);
    return recipes::read_loop_state(folder_ / "checkpoint-7");
  }
};

TEST_F(LoopStateTest, WhatIsWrittenIsRead) {
  const recipes::LoopState state{
      .step = 7,
      .cursor = {.epoch = 2, .consumed = 31, .total = 9, .window = 3, .consumed_before_window = 29},
      .num_tokens = 1234,
      .skipped_steps = 5,
      .skipped_in_a_row = 3,
      .seed = 42,
      .layout = {.tp = 2, .dp = 3, .threads = 4},
      .data_fingerprint = "abc",
      .rows = data::RowIdentity{.shape = "ghi",
                                .on_bad_sample = data::OnBadSample::kSkip,
                                .files = {{.path = "", .fingerprint = "jkl", .rows = 5}}},
      .template_day = "2026-11-23",
      .first_adapter = "def"};
  const recipes::LoopState again = read(recipes::write_loop_state(state));

  EXPECT_EQ(again.step, 7);
  EXPECT_EQ(again.cursor.epoch, 2);
  EXPECT_EQ(again.cursor.consumed, 31);
  EXPECT_EQ(again.cursor.total, 9);
  EXPECT_EQ(again.cursor.window, 3);
  EXPECT_EQ(again.cursor.consumed_before_window, 29);
  ASSERT_TRUE(again.rows);
  EXPECT_EQ(again.rows->shape, "ghi");
  EXPECT_EQ(again.rows->on_bad_sample, data::OnBadSample::kSkip);
  ASSERT_EQ(again.rows->files.size(), 1U);
  EXPECT_EQ(again.rows->files[0].fingerprint, "jkl");
  EXPECT_EQ(again.rows->files[0].rows, 5);
  EXPECT_EQ(again.num_tokens, 1234);
  EXPECT_EQ(again.skipped_steps, 5);
  EXPECT_EQ(again.skipped_in_a_row, 3);
  EXPECT_EQ(again.seed, 42U);
  EXPECT_EQ(recipes::layout_text(again.layout), recipes::layout_text(state.layout));
  EXPECT_EQ(again.data_fingerprint, "abc");
  EXPECT_EQ(again.template_day, "2026-11-23");
  EXPECT_EQ(again.first_adapter, "def");
}

// A value that has no short decimal text is the same to its last bit.
TEST_F(LoopStateTest, TheBestModelIsRead) {
  const recipes::BestModel best{
      .metric = "eval_loss", .step = 4, .value = 0.1 + 0.2, .evaluations_since = 3};
  const recipes::LoopState again = read(recipes::write_loop_state({.best = best}));
  EXPECT_EQ(again.best.metric, "eval_loss");
  EXPECT_EQ(again.best.step, 4);
  EXPECT_EQ(again.best.value, 0.1 + 0.2);
  EXPECT_NE(again.best.value, 0.3);
  EXPECT_EQ(again.best.evaluations_since, 3);

  const std::string without = recipes::write_loop_state({});
  EXPECT_EQ(without.find("best"), std::string::npos);
  EXPECT_EQ(read(without).best.step, 0);
}

// As versions before the cursor had a place of its own wrote it.
TEST_F(LoopStateTest, TheFirstFormatIsRead) {
  const recipes::LoopState state = read(R"({"format": 1, "step": 7, "epoch": 2,
      "packs_consumed": 31, "total_steps": 9, "num_tokens": 1234, "seed": 42, "dp": 3,
      "threads": 4, "data_fingerprint": "abc"})");
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.cursor.epoch, 2);
  EXPECT_EQ(state.cursor.consumed, 31);
  EXPECT_EQ(state.cursor.total, 9);
  EXPECT_EQ(state.skipped_steps, 0);
  EXPECT_EQ(state.layout.dp, 3);
  EXPECT_EQ(state.layout.tp, 1);
  EXPECT_EQ(state.template_day, "") << "no day was kept";
  EXPECT_FALSE(state.rows) << "its rows were not kept in parts";
  EXPECT_EQ(state.first_adapter, std::nullopt) << "no adapter was compared with";
}

TEST_F(LoopStateTest, ALaterFormatIsRefusedByName) {
  expect_error(ErrorCode::kMismatch, "state/loop.json has format 3",
               [&] { read(R"({"format": 3, "step": 7})"); });
}

TEST_F(LoopStateTest, AFileThatIsNotOneIsCorrupt) {
  for (const char* text : {"", "{}", R"({"format": 2, "step": "seven"})", R"({"format": 2})"})
    EXPECT_EQ(code_of([&] { read(text); }), ErrorCode::kCorrupt) << text;
}

}  // namespace
}  // namespace retort::test
