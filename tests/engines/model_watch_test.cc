#include "engines/model_watch.h"

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
            ErrorCode::kMismatch);
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
