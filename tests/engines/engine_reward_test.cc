// A role that scores completions by an engine: what it answers, what it refuses, and who asks again
// when it is lost.
#include "engines/served/reward.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "engines/weights/model_watch.h"
#include "roles/reward/client.h"
#include "roles/teacher/frozen_replicas.h"
#include "tests/engines/reward_engine.h"
#include "tests/engines/serving_replica.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;
using roles::RewardQuestion;

std::string golden_folder() {
  return (test::source_folder() / "tests/recipes/goldens/teacher").string();
}
const models::Tokenizer& tokenizer() {
  static const models::Tokenizer loaded = models::Tokenizer::load(golden_folder());
  return loaded;
}

RewardQuestion question() {
  return {.request_id = 7,
          .label = 1,
          .input_ids = {3, 9, 27, 17, 51, 25, 11, 33},
          .cu_seqlens = {0, 5, 8},
          .prompt_tokens = {2, 1}};
}

class EngineRewardTest : public ::testing::Test {
 protected:
  Future<roles::RewardAnswer> asked(const RewardQuestion& question) {
    return role.score(question, roles::some_call());
  }
  ErrorCode code_of(Future<roles::RewardAnswer> answer) {
    return test::error_of([&] { answer.get(Deadline::after(30s)); }).code();
  }

  std::shared_ptr<RewardEngine> engine = std::make_shared<RewardEngine>(by_rule, 2);
  EngineReward role{
      engine,
      tokenizer(),
      {.name = "judge/0", .timeout = 100s, .config = models::read_model_config(golden_folder())}};
};

TEST_F(EngineRewardTest, AsksForEachSequence) {
  const roles::RewardAnswer answer = asked(question()).get(Deadline::after(30s));
  EXPECT_EQ(answer.request_id, 7u);
  EXPECT_EQ(answer.scores, (std::vector<double>{1251, 1133}));
  EXPECT_EQ(role.completions_scored(), 2);
  EXPECT_NO_THROW(role.work());
}

TEST_F(EngineRewardTest, QuestionThatCannotBeIsRefused) {
  const auto refused = [&](const std::string& part, const auto& change) {
    RewardQuestion wrong = question();
    change(wrong);
    test::expect_error(ErrorCode::kInvalidArgument, part, [&] { asked(wrong); });
  };
  refused("a label below 0", [](RewardQuestion& q) { q.label = -1; });
  refused("cu_seqlens must have", [](RewardQuestion& q) { q.cu_seqlens = {0, 8}; });
  refused("cu_seqlens must have", [](RewardQuestion& q) { q.cu_seqlens.back() = 9; });
  refused("no completion", [](RewardQuestion& q) { q.prompt_tokens[1] = 3; });
  refused("no completion", [](RewardQuestion& q) { q.cu_seqlens[1] = -5; });
  refused("outside the model's vocabulary", [](RewardQuestion& q) { q.input_ids[3] = 1 << 20; });
  refused("outside the model's vocabulary", [](RewardQuestion& q) { q.input_ids[3] = -1; });
  EXPECT_TRUE(engine->deadlines.empty());
}

TEST_F(EngineRewardTest, AnswerThatCannotBeFailsItsRequestAlone) {
  engine->hold = true;
  auto wrong = asked(question());
  ASSERT_EQ(engine->held.size(), 2u);
  engine->held[0].set_error(std::make_exception_ptr(Error(ErrorCode::kCorrupt, "not finite")));
  EXPECT_EQ(engine->cancelled, 1) << "what is open of it";
  EXPECT_EQ(code_of(std::move(wrong)), ErrorCode::kCorrupt);
  EXPECT_NO_THROW(role.work());
  engine->hold = false;
  EXPECT_NO_THROW(asked(question()).get(Deadline::after(30s)));
}

// A timeout is that of one question: others stand before it.
TEST_F(EngineRewardTest, QuestionsBeforeItDoNotTakeItsTime) {
  engine->hold = true;
  auto open = asked(question());
  ASSERT_EQ(engine->deadlines.size(), 2u);
  EXPECT_LT(engine->deadlines[0].remaining(), 101s);
  EXPECT_GT(engine->deadlines[1].remaining(), 150s);
}

// Callers that wait, and those that ask later, go to another replica.
TEST_F(EngineRewardTest, LostEngineEndsTheRole) {
  engine->hold = true;
  auto open = asked(question());
  engine->held[1].set_error(
      std::make_exception_ptr(Error(ErrorCode::kUnavailable, "connection refused")));
  EXPECT_EQ(code_of(std::move(open)), ErrorCode::kPeerLost);
  EXPECT_EQ(test::code_of([&] { role.work(); }), ErrorCode::kUnavailable);
  EXPECT_EQ(test::code_of([&] { asked(question()); }), ErrorCode::kPeerLost);
}

// The engine works for others then.
TEST_F(EngineRewardTest, QuestionsOfACallerThatIsGoneAreCancelled) {
  engine->hold = true;
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  auto open = role.score(question(), roles::some_call(gone));
  auto other = asked(question());
  role.work();
  EXPECT_EQ(engine->cancelled, 0) << "both wait";
  gone->store(true);
  role.work();
  EXPECT_EQ(engine->cancelled, 2) << "one for each sequence of the first";
  EXPECT_EQ(code_of(std::move(open)), ErrorCode::kCancelled);

  EXPECT_FALSE(other.ready());
  engine->held[2].set_value(1);
  engine->held[3].set_value(2);
  EXPECT_EQ(other.get(Deadline::after(30s)).scores, (std::vector<double>{1, 2}));
  EXPECT_NO_THROW(role.work());
}

TEST_F(EngineRewardTest, StopAnswersWhoWaits) {
  engine->hold = true;
  auto open = asked(question());
  role.stop();
  EXPECT_EQ(code_of(std::move(open)), ErrorCode::kPeerLost);
}

struct Replica {
  Replica(const std::string& name, RewardEngine::Rule rule, roles::ProbeNumbers numbers = {})
      : engine(std::make_shared<RewardEngine>(std::move(rule))),
        serving(name, engine, tokenizer(),
                EngineReward::Options{.name = name,
                                      .config = models::read_model_config(golden_folder()),
                                      .numbers = std::move(numbers)}) {}

  std::shared_ptr<RewardEngine> engine;
  ServingReplica<EngineReward> serving;
};

class RewardClientTest : public ::testing::Test {
 protected:
  // 40 completions, of which each gets its own number.
  RewardClientTest() {
    for (int32_t i = 0; i < 40; ++i)
      completions.push_back({5, i});
    for (const auto& completion : completions)
      sequences.push_back({.prompt = prompt, .completion = completion});
  }
  roles::RewardClient client(const std::vector<Replica*>& replicas) {
    roles::FrozenReplicas::Options options{
        .role = "judge", .replicas = {}, .timeout = 30s, .why_same_ids = "they are compared"};
    for (size_t i = 0; i < replicas.size(); ++i) {
      const std::string name = "judge/" + std::to_string(i);
      student.connect(name, replicas[i]->serving.address(), Deadline::after(30s));
      options.replicas.push_back({.leader = name, .holders = {}});
    }
    return roles::RewardClient(student, options, tokenizer());
  }
  std::vector<double> expected() const {
    std::vector<double> scores;
    for (int i = 0; i < 40; ++i)
      scores.push_back(300 + i);
    return scores;
  }

  rpc::Agent student{{.name = "student/0", .secret = "secret"}};
  const std::vector<int32_t> prompt{1, 2, 3};
  std::vector<std::vector<int32_t>> completions;
  std::vector<roles::RewardClient::Sequence> sequences;
};

TEST_F(RewardClientTest, ScoresComeBackInOrderFromAllReplicas) {
  Replica first("judge/0", by_rule), second("judge/1", by_rule);
  EXPECT_EQ(client({&first, &second}).score(sequences, 0), expected());
  EXPECT_EQ(first.engine->deadlines.size() + second.engine->deadlines.size(), 40u);
  EXPECT_GT(first.engine->deadlines.size(), 0u);
  EXPECT_GT(second.engine->deadlines.size(), 0u);
}

// Which of both is the wrong one nobody can tell, so both are named.
TEST(RewardReplicas, OfOtherModelsAreRefused) {
  const double none = -std::numeric_limits<double>::infinity();
  const auto numbers = [](std::vector<double> values) {
    return roles::ProbeNumbers{.values = std::move(values), .largest = 0.5, .mean = 0.1};
  };
  Replica first("judge/0", by_rule, numbers({-1, -2, -3, none}));

  // A student that asks both compares them at the first meeting.
  int askers = 0;
  const auto compare = [&](std::vector<double> values) {
    Replica other("judge/1", by_rule, numbers(std::move(values)));
    rpc::Agent student{{.name = "student/" + std::to_string(askers++), .secret = "secret"}};
    student.connect("judge/0", first.serving.address(), Deadline::after(30s));
    student.connect("judge/1", other.serving.address(), Deadline::after(30s));
    roles::FrozenReplicas(
        student,
        {.role = "judge",
         .replicas = {{.leader = "judge/0", .holders = {}}, {.leader = "judge/1", .holders = {}}},
         .timeout = 30s,
         .why_same_ids = "they are compared"},
        &tokenizer());
  };

  EXPECT_NO_THROW(compare({-1.3, -2, -3, none})) << "rounding";
  const std::vector<std::vector<double>> others{{-1.6, -2, -3, none},
                                                {-1.2, -2.2, -3.2, none},  // on average
                                                {-1, -2, -3, -4},
                                                {-1, -2, -3},
                                                {}};
  for (const std::vector<double>& values : others) {
    test::expect_error(ErrorCode::kMismatch, "give the same tokens other numbers",
                       [&] { compare(values); });
    test::expect_error(ErrorCode::kMismatch, "judge/0", [&] { compare(values); });
    test::expect_error(ErrorCode::kMismatch, "judge/1", [&] { compare(values); });
  }
}

TEST_F(RewardClientTest, AnotherReplicaTakesOver) {
  Replica first("judge/0", by_rule);
  Replica lost("judge/1", [](const RewardRequest& request) -> double {
    if (request.completion.back() < 20) return by_rule(request);
    throw Error(ErrorCode::kUnavailable, "connection refused");
  });
  auto asked = client({&first, &lost});
  EXPECT_EQ(asked.score(sequences, 0), expected());
  EXPECT_EQ(asked.score(sequences, 0), expected()) << "without the one that is lost";
}

TEST_F(RewardClientTest, WithoutAReplicaItSaysSo) {
  Replica lost("judge/0", [](const RewardRequest&) -> double {
    throw Error(ErrorCode::kUnavailable, "connection refused");
  });
  auto asked = client({&lost});
  EXPECT_EQ(test::code_of([&] { asked.score(sequences, 0); }), ErrorCode::kPeerLost);
}

// A client that ends waits neither for a judge that is slow nor for one that is away.
TEST_F(RewardClientTest, StopEndsTheWait) {
  Replica slow("judge/0", by_rule);
  slow.engine->hold = true;
  auto asked = client({&slow});
  std::thread stopper([&] { asked.stop(); });
  EXPECT_EQ(test::code_of([&] { asked.score(sequences, 0); }), ErrorCode::kCancelled);
  stopper.join();
  EXPECT_EQ(test::code_of([&] { asked.score(sequences, 0); }), ErrorCode::kCancelled);
}

TEST_F(RewardClientTest, AnErrorOfTheAnswerEndsTheBatch) {
  Replica wrong("judge/0", [](const RewardRequest&) { return std::nan(""); });
  auto asked = client({&wrong});
  EXPECT_EQ(test::code_of([&] { asked.score(sequences, 0); }), ErrorCode::kCorrupt);
}

TEST(RewardWatch, FindsAnotherModelUnderTheSameAddress) {
  double number = 1;
  const auto engine = std::make_shared<RewardEngine>([&](const RewardRequest&) { return number; });
  ModelWatch watch(
      engine,
      {.asks = ModelWatch::Asks::kReward, .vocab_rows = 64, .tolerance = 1e-3, .interval = 0ms});
  for (int i = 0; i < 3; ++i)
    EXPECT_NO_THROW(watch.look());
  number = 1.01;
  EXPECT_EQ(test::code_of([&] {
              for (int i = 0; i < 3; ++i)
                watch.look();
            }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort::engines
