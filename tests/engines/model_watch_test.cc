#include "engines/weights/model_watch.h"

#include <gtest/gtest.h>

#include "tests/engines/model_engine.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;

struct Watched {
  std::shared_ptr<ModelEngine> engine = std::make_shared<ModelEngine>(roles::golden_decoder());
  ModelWatch watch{
      engine,
      {.vocab_rows = engine->decoder.config().vocab_size, .tolerance = 1e-3, .interval = 0ms}};
};

TEST(ModelWatch, SaysNothingOfTheSameModel) {
  Watched watched;
  for (int i = 0; i < 4; ++i)
    EXPECT_NO_THROW(watched.watch.look());
}

TEST(ModelWatch, FindsAnotherModelUnderTheSameAddress) {
  Watched watched;
  watched.watch.look();
  watched.watch.look();
  watched.engine->decoder = roles::other_decoder(3);
  EXPECT_EQ(test::code_of([&] {
              for (int i = 0; i < 3; ++i)
                watched.watch.look();
            }),
            ErrorCode::kInvalidArgument);
}

// Behind many others a question may have no turn in its time: others show whether the engine hangs.
TEST(ModelWatch, LateAnswerIsNone) {
  Watched watched;
  int looks = 0;
  watched.engine->before_score = [&] {
    if (++looks == 2) throw Error(ErrorCode::kTimeout, "no place");
    if (looks == 4) throw Error(ErrorCode::kUnavailable, "connection refused");
  };
  for (int i = 0; i < 4; ++i)
    EXPECT_NO_THROW(watched.watch.look());
  EXPECT_EQ(test::code_of([&] { watched.watch.look(); }), ErrorCode::kUnavailable);
}

// The engine was away, and its role was started again.
TEST(ModelWatch, FindsAnotherModelThanAnEarlierProcess) {
  Watched first, same, other;
  const FirstNumbers began =
      read_first_numbers(to_json(first.watch.begin(std::nullopt, Deadline::after(10s))));
  EXPECT_EQ(began.given.size(), 15u);
  EXPECT_EQ(same.watch.begin(began, Deadline::after(10s)).given, began.given);
  other.engine->decoder = roles::other_decoder(3);
  EXPECT_EQ(test::code_of([&] { other.watch.begin(began, Deadline::after(10s)); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(test::code_of([] { read_first_numbers("{}"); }), ErrorCode::kCorrupt);
}

// The tolerance that the first process had counts, whatever a later probe finds.
TEST(ModelWatch, ToleranceOfTheFirstProcessCounts) {
  Watched first, other;
  FirstNumbers began = first.watch.begin(std::nullopt, Deadline::after(10s));
  other.engine->decoder = roles::other_decoder(3);
  began.tolerance = 1e3;
  EXPECT_NO_THROW(other.watch.begin(began, Deadline::after(10s)));
}

TEST(ModelWatch, AsksOnceAnInterval) {
  Watched watched;
  int questions = 0;
  watched.engine->before_score = [&] { ++questions; };
  ModelWatch rare(watched.engine, {.vocab_rows = 64, .interval = 1h});
  for (int i = 0; i < 5; ++i)
    rare.look();
  EXPECT_EQ(questions, 1);
}

TEST(ModelWatch, AnEngineThatIsGoneIsSaid) {
  Watched watched;
  watched.engine->before_score = [] { throw Error(ErrorCode::kUnavailable, "connection refused"); };
  EXPECT_EQ(test::code_of([&] {
              for (int i = 0; i < 2; ++i)
                watched.watch.look();
            }),
            ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace retort::engines
