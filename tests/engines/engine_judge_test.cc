// A role that is asked in words: what it answers and refuses, who asks again when it is lost, what
// the probe finds of its engine, and how another model under its address is seen.
#include "engines/served/judge.h"

#include <gtest/gtest.h>

#include "engines/contract/options.h"
#include "engines/probing/probe.h"
#include "engines/weights/model_watch.h"
#include "roles/reward/judge_client.h"
#include "tests/engines/serving_replica.h"
#include "tests/engines/words_engine.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;

EngineJudge::Options options(const std::string& name, const std::string& model = "critic") {
  return {.name = name, .timeout = 100s, .served_model = model};
}

TEST(EngineJudge, RefusedQuestionHasNoWords) {
  EngineJudge role(std::make_shared<WordsEngine>([](const WriteRequest& request) {
                     return request.text == "a" ? Written{.cut = true, .refused = "too long"}
                                                : by_echo(request);
                   }),
                   options("judge/0"));
  const roles::JudgeAnswer answer =
      role.answer({.max_new_tokens = 4, .texts = {"a", "b"}}, roles::some_call())
          .get(Deadline::after(30s));
  EXPECT_EQ(answer.texts, (std::vector<std::string>{"", "b/4"}));
  EXPECT_EQ(answer.cut, (std::vector<uint8_t>{1, 0}));
}

TEST(EngineJudge, AnswersEachText) {
  EngineJudge role(std::make_shared<WordsEngine>(by_echo), options("judge/0"));
  const roles::JudgeAnswer answer =
      role.answer({.request_id = 7, .max_new_tokens = 2, .texts = {"a", "b"}}, roles::some_call())
          .get(Deadline::after(30s));
  EXPECT_EQ(answer.request_id, 7u);
  EXPECT_EQ(answer.texts, (std::vector<std::string>{"a/2", "b/2"}));
  EXPECT_EQ(answer.cut, (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(role.texts_answered(), 2);
  test::expect_refused("max_new_tokens must be", [&] {
    role.answer({.max_new_tokens = 0, .texts = {"a"}}, roles::some_call());
  });
}

struct JudgeReplica {
  JudgeReplica(const std::string& name, WordsEngine::Rule rule, const std::string& model = "critic")
      : serving(name, std::make_shared<WordsEngine>(std::move(rule)), options(name, model)) {}

  ServingReplica<EngineJudge> serving;
};

class JudgeClientTest : public ::testing::Test {
 protected:
  roles::JudgeClient client(const std::vector<JudgeReplica*>& replicas) {
    roles::FrozenReplicas::Options options{.role = "judge", .replicas = {}, .timeout = 30s};
    for (size_t i = 0; i < replicas.size(); ++i) {
      const std::string name = "judge/" + std::to_string(i);
      student.connect(name, replicas[i]->serving.address(), Deadline::after(30s));
      options.replicas.push_back({.leader = name, .holders = {}});
    }
    return roles::JudgeClient(student, options);
  }
  static std::vector<std::string> twenty(const std::string& ending = "") {
    std::vector<std::string> texts;
    for (int i = 0; i < 20; ++i)
      texts.push_back(std::to_string(i) + ending);
    return texts;
  }
  static std::vector<std::string> said(roles::JudgeClient& asked) {
    std::vector<std::string> texts;
    for (const roles::JudgeClient::Said& one : asked.ask(twenty(), 4))
      texts.push_back(one.text);
    return texts;
  }

  rpc::Agent student{{.name = "student/0", .secret = "secret"}};
};

TEST_F(JudgeClientTest, AnswersComeBackInOrderWhenAReplicaIsLost) {
  JudgeReplica first("judge/0", by_echo);
  JudgeReplica lost("judge/1", [](const WriteRequest& request) -> Written {
    if (request.text < "15") return by_echo(request);
    throw Error(ErrorCode::kUnavailable, "connection refused");
  });
  auto asked = client({&first, &lost});
  EXPECT_EQ(said(asked), twenty("/4"));
  EXPECT_EQ(said(asked), twenty("/4")) << "without the one that is lost";
}

TEST_F(JudgeClientTest, WithoutAReplicaItSaysSo) {
  JudgeReplica lost("judge/0", [](const WriteRequest&) -> Written {
    throw Error(ErrorCode::kUnavailable, "connection refused");
  });
  auto asked = client({&lost});
  EXPECT_EQ(test::code_of([&] { said(asked); }), ErrorCode::kPeerLost);
  asked.stop();
  EXPECT_EQ(test::code_of([&] { said(asked); }), ErrorCode::kCancelled);
}

TEST_F(JudgeClientTest, ReplicasMustServeOneModel) {
  JudgeReplica first("judge/0", by_echo), other("judge/1", by_echo, "larger");
  test::expect_error(ErrorCode::kMismatch, "is served by 'critic' and by 'larger'", [&] {
    client({&first, &other});
  });
}

TEST(JudgeProbe, SteadyWordsAreAccepted) {
  WordsEngine engine(by_echo);
  const Contract contract =
      probe_words(engine, EngineKind::kOpenai, "http://host:8000", Deadline::after(1min));
  EXPECT_TRUE(contract.writes);
  EXPECT_EQ(contract.served_model, "critic");
  EXPECT_TRUE(contract.words_repeat.value() && contract.words_in_batch.value());
  EXPECT_TRUE(contract.words_stop_at_limit.value());
  const Needs needs{.what = Purpose::kWords, .role = "judge", .objective = "grpo"};
  EXPECT_NO_THROW(check_contract(contract, needs));
  EXPECT_NE(contract_table(contract).find("answers in words"), std::string::npos);
  EXPECT_EQ(contract_from_json(to_json(contract)).written, contract.written);

  // The longest answer that the recipe asks for must have room.
  Contract small = contract;
  small.context_tokens = 64;
  test::expect_refused("max_new_tokens", [&] {
    check_contract(small, {.what = Purpose::kWords, .role = "judge", .answer_tokens = 64});
  });

  // Another role has no use for words.
  EXPECT_THROW(check_contract(contract, {.what = Purpose::kTopK, .role = "teacher"}), Error);
}

TEST(JudgeProbe, WordsThatChangeAreSeen) {
  int count = 0;
  WordsEngine engine([&](const WriteRequest&) {
    return Written{.text = std::to_string(++count), .cut = false, .tokens = 1};
  });
  const Contract contract =
      probe_words(engine, EngineKind::kOpenai, "http://host:8000", Deadline::after(1min));
  EXPECT_FALSE(contract.words_repeat.value());
  EXPECT_FALSE(contract.words_in_batch.value());
  EXPECT_NE(contract_table(contract).find("OTHER words"), std::string::npos);
}

// This holds whether the server counts its tokens or not.
TEST(JudgeProbe, WhoWritesOnAfterTheLimitIsRefused) {
  for (const int64_t tokens : {9, 0}) {
    WordsEngine engine([&](const WriteRequest&) {
      return Written{.text = "on and on and on", .cut = false, .tokens = tokens};
    });
    const Contract contract =
        probe_words(engine, EngineKind::kOpenai, "http://host:8000", Deadline::after(1min));
    test::expect_error(ErrorCode::kMismatch, "writes on after max_tokens", [&] {
      check_contract(contract, {.what = Purpose::kWords, .role = "judge"});
    });
  }
}

TEST(JudgeProbe, WhoRefusesAPlainQuestionIsNoJudge) {
  WordsEngine engine([](const WriteRequest&) {
    return Written{.cut = true, .refused = "max_tokens is not supported"};
  });
  test::expect_refused("max_tokens is not supported", [&] {
    probe_words(engine, EngineKind::kOpenai, "http://host:8000", Deadline::after(1min));
  });
}

class JudgeWatch : public ::testing::Test {
 protected:
  // Looks as often as it takes to see so many answers.
  void look(int answers) {
    for (int i = 0; i < 2 * answers; ++i)
      watch.look();
  }

  std::string words = "red, green";
  bool fails = false;
  std::shared_ptr<WordsEngine> engine = std::make_shared<WordsEngine>([this](const WriteRequest&) {
    if (fails) throw Error(ErrorCode::kUnavailable, "status 502");
    return Written{.text = words, .cut = false, .tokens = 2};
  });
  ModelWatch watch{engine, {.asks = ModelWatch::Asks::kWords, .interval = 0ms}};
};

TEST_F(JudgeWatch, FindsAnotherModelUnderTheSameAddress) {
  look(3);
  words = "blue";
  test::expect_error(ErrorCode::kInvalidArgument, "another model",
                     [&] { look(ModelWatch::kOtherWords + 1); });
}

// Words may turn beside other requests where two tokens are nearly tied.
TEST_F(JudgeWatch, OneOtherAnswerIsNotAnotherModel) {
  look(2);
  for (int i = 0; i < 3; ++i) {
    words = "blue";
    EXPECT_NO_THROW(watch.look());
    words = "red, green";
    look(2);
  }
}

// The engine was away, and its role was started again.
TEST_F(JudgeWatch, FindsAnotherModelThanAnEarlierProcess) {
  const FirstNumbers began =
      read_first_numbers(to_json(watch.begin(std::nullopt, Deadline::after(10s))));
  EXPECT_EQ(began.words, "red, green");
  const auto begun_again = [&] {
    ModelWatch second(engine, {.asks = ModelWatch::Asks::kWords, .interval = 0ms});
    second.begin(began, Deadline::after(10s));
  };
  EXPECT_NO_THROW(begun_again());
  words = "blue";
  EXPECT_EQ(test::code_of(begun_again), ErrorCode::kInvalidArgument);
}

// For a moment: others wait for it.
TEST_F(JudgeWatch, FailureIsNotAnotherModel) {
  look(2);
  fails = true;
  EXPECT_NO_THROW(look(3));
  fails = false;
  EXPECT_NO_THROW(look(3));
}

TEST_F(JudgeWatch, UnsteadyWordsAreNotAsked) {
  ModelWatch none(engine, {.asks = ModelWatch::Asks::kNothing, .interval = 0ms});
  none.begin(std::nullopt, Deadline::after(10s));
  none.look();
  EXPECT_EQ(engine->asked, 0);
}

}  // namespace
}  // namespace retort::engines
