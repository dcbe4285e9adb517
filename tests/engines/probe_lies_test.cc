// Engines that are not what they say: each lie must be found, and named.
#include <chrono>

#include "tests/engines/probe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

// A lie that the probe survives; check_contract refuses its contract, and the same without it
// passes.
struct Told {
  std::string name;
  Lies lies;
  Needs needs;
  ErrorCode code = ErrorCode::kMismatch;
  std::string part;
};

class ProbeLieTest : public ProbeTest {
 protected:
  static void expect_named(const Told& told) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, told.name);
    check_contract(probed({}, {.sampling = told.needs.sampling}), told.needs);
    expect_refused(probed(told.lies, {.sampling = told.needs.sampling}), told.needs, told.code,
                   told.part);
  }
};

TEST_F(ProbeLieTest, DrawnLogProbabilities) {
  Needs hot = draws();
  hot.sampling.temperature = 0.7;
  for (const auto& [meaning, part] :
       {std::pair{DrawnMeaning::kRaw, "this engine's are raw"},
        std::pair{DrawnMeaning::kTempered, ""}, std::pair{DrawnMeaning::kProcessed, ""}}) {
    const Contract contract = probed({.drawn = meaning});
    check_contract(contract, hot);
    Needs needs = hot;
    needs.what = Purpose::kDrawsWithRatio;
    needs.objective = "grpo";
    if (*part)
      expect_refused(contract, needs, ErrorCode::kInvalidArgument, part);
    else
      check_contract(contract, needs);
  }

  // These numbers have another scale than any of the three meanings.
  expect_named({.name = "scaled",
                .lies = {.drawn_scale = 0.7},
                .needs = ratio(),
                .code = ErrorCode::kInvalidArgument,
                .part = "is unknown"});
}

TEST_F(ProbeLieTest, NamedIds) {
  Lies shut, rows, columns, logits;
  shut.names = false;
  rows.named_rows_off = -1;
  columns.named_columns = true;
  logits.named_logits = true;
  const Contract without = probed(shut, {.names_ids = true});
  expect_refused(without, named(64), ErrorCode::kInvalidArgument, "the door is shut");
  check_contract(without, top_k(64));
  for (const Lies& lies : {rows, columns, logits})
    expect_refused(probed(lies, {.names_ids = true}), named(64), ErrorCode::kMismatch,
                   "what it says of named ids is something else");
}

TEST_F(ProbeLieTest, TruncatedLogProbabilities) {
  Needs needs = ratio();
  needs.sampling.top_p = 0.9;
  check_contract(probed({.drawn = DrawnMeaning::kProcessed}), needs);
  expect_refused(probed({.drawn = DrawnMeaning::kTempered}), needs, ErrorCode::kInvalidArgument,
                 "processed_logprobs");
  expect_refused(probed({}), needs, ErrorCode::kInvalidArgument, "this engine's are raw");
  Lies lies{.drawn = DrawnMeaning::kProcessed};
  lies.ignore_top_p = true;
  expect_refused(probed(lies), needs, ErrorCode::kInvalidArgument, "draws tokens that it excludes");
}

TEST_F(ProbeLieTest, IdsOneOff) {
  for (const int32_t off : {1, -1}) {
    // The ids are refuted with the copy, and by the text alone.
    expect_named({.name = "copy",
                  .lies = {.ids_off = off},
                  .needs = given(),
                  .part = "ids are not the tokenizer's"});
    const Contract contract = probed(reader(), {.ids_off = off}, nullptr);
    expect_refused(contract, given(), ErrorCode::kMismatch, "one off");
  }
  // Only the ids of answers are off here, for which no copy is needed.
  const Contract answers = probed(model(), {.answer_ids_off = 1}, nullptr);
  expect_refused(answers, given(), ErrorCode::kMismatch, "the given token");
  Lies drawn{.answer_ids_off = 1};
  drawn.max_top_k = 0;
  expect_refused(probed(reader(), drawn, nullptr), draws(), ErrorCode::kMismatch,
                 "ids of completions are not those of prompts");
}

TEST_F(ProbeLieTest, AnotherModelThanTheCopy) {
  expect_refused(probed(other_model(), {}, &model()), given(), ErrorCode::kMismatch,
                 "serves another model");
  Lies tempered;
  tempered.score_temperature = 1.5;
  expect_named({.name = "tempered scores", .lies = tempered, .needs = top_k(8), .part = "copy"});
}

TEST_F(ProbeLieTest, NumbersThatChange) {
  Lies stale;
  stale.stale = &other_model();
  expect_named({.name = "stale", .lies = stale, .needs = given(), .part = "prefix cache"});
  Lies batch;
  batch.batch_noise = 0.5f;
  expect_named({.name = "batch", .lies = batch, .needs = given(), .part = "beside other requests"});
  Lies unsteady;
  unsteady.noise_of_repeats = 0.12f;
  expect_refused(probed(unsteady), given(), ErrorCode::kMismatch, "differ");
}

TEST_F(ProbeLieTest, Seeds) {
  Needs repeatable = draws();
  repeatable.seeds = true;
  Lies forgetful;
  forgetful.forget_seeds = true;
  expect_named({.name = "forgetful",
                .lies = forgetful,
                .needs = repeatable,
                .code = ErrorCode::kInvalidArgument,
                .part = "the same seed draws other tokens"});
  Lies batch;
  batch.batch_noise = 1e-4f;
  expect_named({.name = "batch",
                .lies = batch,
                .needs = repeatable,
                .code = ErrorCode::kInvalidArgument,
                .part = "beside other requests"});
  Lies fixed;
  fixed.one_seed = true;
  expect_named({.name = "fixed", .lies = fixed, .needs = draws(), .part = "different seeds"});
}

TEST_F(ProbeLieTest, EndTokens) {
  Lies lies;
  lies.ignore_ends = true;
  expect_named({.name = "ends", .lies = lies, .needs = draws(), .part = "after an end token"});
}

TEST_F(ProbeLieTest, TooLittle) {
  Lies narrow;
  narrow.max_top_k = 20;
  expect_named({.name = "narrow",
                .lies = narrow,
                .needs = top_k(64),
                .code = ErrorCode::kInvalidArgument,
                .part = "--max-logprobs 64"});
  Needs wide = given();
  wide.context_tokens = 1000;
  expect_refused(probed({}), wide, ErrorCode::kInvalidArgument, "engine takes 512");
  Lies half;
  half.half_mass = true;
  expect_refused(probed(reader(), half, nullptr), given(), ErrorCode::kMismatch, "sum to 0.5");
}

// A vocabulary below the tokenizer's: the highest id is refused, and so is most of what is drawn.
TEST_F(ProbeLieTest, AVocabularyThatIsTooSmall) {
  Contract contract = probed({});
  contract.vocab_rows = tokenizer().vocab_size() - 1;
  expect_refused(contract, given(), ErrorCode::kMismatch, "the engine knows");
  Lies lies;
  lies.vocab_rows = tokenizer().vocab_size() - 1;
  lies.draws = false;
  lies.max_top_k = 0;
  EXPECT_FALSE(probed(lies).highest_id);
}

TEST_F(ProbeLieTest, AnswersThatCannotBe) {
  Lies nan;
  nan.nan = true;
  test::expect_error(ErrorCode::kCorrupt, "not a number", [&] { probed(nan); });
  Lies fewer;
  fewer.short_top_k = true;
  test::expect_error(ErrorCode::kCorrupt, "ids is not [1, ", [&] { probed(fewer); });
  Lies width;
  width.hidden_scale = 1.2;
  expect_refused(probed(width), hidden(), ErrorCode::kMismatch, "final norm");
}

TEST_F(ProbeLieTest, ASlowEngineEndsAtTheDeadline) {
  FakeEngine engine(model(), {.never_draw = true});
  const ProbeSubject subject{
      .engine = engine, .tokenizer = tokenizer(), .url = "http://host:8000", .local = &model()};
  test::expect_error(ErrorCode::kTimeout, "probe=a greedy completion",
                     [&] { probe(subject, {}, Deadline::after(std::chrono::milliseconds(1500))); });
}

}  // namespace
}  // namespace retort::engines
