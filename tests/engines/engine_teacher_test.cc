// A teacher that an engine plays answers as one of ours, and says so when it cannot.
#include "engines/served/teacher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "roles/teacher/server.h"
#include "tests/engines/held_engine.h"
#include "tests/engines/model_engine.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;
using roles::ForwardRequest;
using roles::PayloadKind;

std::string golden_teacher() {
  return (test::source_folder() / "tests/recipes/goldens/teacher").string();
}

ForwardRequest request_for(PayloadKind kind) {
  return {.request_id = 7,
          .step = 1,
          .input_ids = at::tensor({3, 9, 27, 17, 51, 25, 11, 33}, at::kInt),
          .cu_seqlens = at::tensor({0, 5, 8}, at::kInt),
          .positions = at::tensor({0, 1, 3, 5, 6}, at::kInt),
          .spec = {.kind = kind, .top_k = 6}};
}

class EngineTeacherTest : public ::testing::Test {
 protected:
  Future<roles::Payload> asked(const ForwardRequest& request) {
    auto reply = teacher.enqueue(request, roles::some_call());
    while (teacher.work()) {
    }
    return reply;
  }

  std::shared_ptr<ModelEngine> engine =
      std::make_shared<ModelEngine>(models::load_decoder(golden_teacher(), at::kFloat));
  EngineTeacher teacher{
      engine,
      models::Tokenizer::load(golden_teacher()),
      {.name = "teacher/0", .config = engine->decoder.config(), .folder = golden_teacher()}};
  roles::Teacher ours{"teacher/0", models::load_decoder(golden_teacher(), at::kFloat),
                      models::Tokenizer::load(golden_teacher())};
};

TEST_F(EngineTeacherTest, AnswersAsOneOfOurs) {
  for (const PayloadKind kind :
       {PayloadKind::kTopK, PayloadKind::kTargetLogProbs, PayloadKind::kHiddenStates}) {
    SCOPED_TRACE(enum_name(kind));
    const roles::Payload got = asked(request_for(kind)).get(Deadline::after(30s));
    const roles::Payload expected = roles::ask_teacher(ours, request_for(kind));
    EXPECT_NO_THROW(roles::check_payload(got, expected.label, engine->decoder.config().vocab_size,
                                         engine->decoder.config().hidden_size));
    const auto close = [](const at::Tensor& a, const at::Tensor& b) {
      return a.defined() == b.defined() && (!a.defined() || at::allclose(a, b, 1e-5, 1e-5));
    };
    EXPECT_TRUE(close(got.logps, expected.logps));
    EXPECT_TRUE(close(got.hidden, expected.hidden));
    EXPECT_TRUE(close(got.log_tail, expected.log_tail));
    if (got.ids.defined()) {
      EXPECT_TRUE(at::equal(got.ids, expected.ids));
    }
  }
}

// The request that travels ahead is no question: an engine keeps nothing for the ids.
TEST_F(EngineTeacherTest, ScoresIdsThatTheStudentNames) {
  ForwardRequest request = request_for(PayloadKind::kTopK);
  request.spec.support = roles::Support::kStudent;
  auto ahead = asked(request);
  ASSERT_TRUE(ahead.ready());
  EXPECT_FALSE(ahead.get().logps.defined());
  EXPECT_EQ(engine->named, 0);

  request.ids = (at::arange(5).unsqueeze(1) * 7 + at::arange(6) * 3).to(at::kInt);
  const roles::Payload expected = roles::ask_teacher(ours, request);
  const roles::Payload got = asked(request).get(Deadline::after(30s));
  EXPECT_EQ(engine->named, 2) << "one for each sequence";
  EXPECT_NO_THROW(roles::check_label(got, expected.label));
  EXPECT_FALSE(got.ids.defined()) << "the student has them";
  EXPECT_TRUE(at::allclose(got.logps, expected.logps, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(got.log_tail, expected.log_tail, 1e-4, 1e-5));
}

TEST_F(EngineTeacherTest, HeadIsThatOfTheFolder) {
  const at::Tensor got = teacher.head({2, 9}).weight, expected = ours.head({2, 9}).weight;
  EXPECT_TRUE(at::equal(got, expected.to(at::kFloat)));
  EXPECT_EQ(test::error_of([&] {
              teacher.head({0, 1'000'000});
            }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(EngineTeacherTest, SaysWhoItIs) {
  const roles::TeacherInfo got = teacher.info({.tokenizer_size = 64}),
                           expected = ours.info({.tokenizer_size = 64});
  EXPECT_EQ(got.vocabulary_fingerprint, expected.vocabulary_fingerprint);
  EXPECT_EQ(got.vocab_rows, expected.vocab_rows);
  EXPECT_EQ(got.hidden_size, expected.hidden_size);
  EXPECT_EQ(test::error_of([&] { teacher.info({.weights_fingerprint = true}); }).code(),
            ErrorCode::kInvalidArgument);
}

// Two ranks of a student ask for halves of one answer; the engine is asked once.
TEST_F(EngineTeacherTest, PartsAreOfOneAnswer) {
  int questions = 0;
  engine->before_score = [&] { ++questions; };
  ForwardRequest first = request_for(PayloadKind::kTargetLogProbs), second = first;
  first.parts = second.parts = 2;
  second.part = 1;
  auto one = teacher.enqueue(first, roles::some_call()),
       two = teacher.enqueue(second, roles::some_call());
  while (teacher.work()) {
  }
  const at::Tensor whole =
      roles::ask_teacher(ours, request_for(PayloadKind::kTargetLogProbs)).logps;
  EXPECT_TRUE(at::allclose(one.get(Deadline::after(30s)).logps, whole.narrow(0, 0, 3), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(two.get(Deadline::after(30s)).logps, whole.narrow(0, 3, 2), 1e-5, 1e-5));
  EXPECT_EQ(questions, 2) << "one for each sequence";
}

TEST_F(EngineTeacherTest, AnswerThatCannotBeFailsItsRequestAlone) {
  engine->lie = [](Scored& scored) { scored.log_probs.fill_(-0.1F); };
  auto wrong = asked(request_for(PayloadKind::kTopK));
  EXPECT_EQ(test::error_of([&] { wrong.get(Deadline::after(30s)); }).code(), ErrorCode::kCorrupt);
  engine->lie = nullptr;
  EXPECT_NO_THROW(asked(request_for(PayloadKind::kTopK)).get(Deadline::after(30s)));
}

// The second rank asks when the answer to the first was an error already.
TEST_F(EngineTeacherTest, PartThatIsAskedForAfterAFailureIsComputedAnew) {
  ForwardRequest first = request_for(PayloadKind::kTargetLogProbs), second = first;
  first.parts = second.parts = 2;
  second.part = 1;
  engine->before_score = [] { throw Error(ErrorCode::kCorrupt, "a log-probability above 0"); };
  auto failed = asked(first);
  EXPECT_EQ(test::error_of([&] { failed.get(Deadline::after(30s)); }).code(), ErrorCode::kCorrupt);

  engine->before_score = nullptr;
  auto late = asked(second);
  ASSERT_TRUE(late.ready()) << "nobody answers it";
  EXPECT_EQ(late.get().logps.size(0), 2);
  auto again = asked(first);
  ASSERT_TRUE(again.ready());
  EXPECT_EQ(again.get().logps.size(0), 3);
}

class HeldTeacherTest : public ::testing::Test {
 protected:
  void ask() {
    replies.push_back(
        teacher.enqueue(request_for(PayloadKind::kTargetLogProbs), roles::some_call()));
    while (teacher.work()) {
    }
  }

  std::shared_ptr<HeldEngine> engine = std::make_shared<HeldEngine>();
  EngineTeacher teacher{engine,
                        models::Tokenizer::load(golden_teacher()),
                        {.name = "teacher/0",
                         .timeout = 100s,
                         .config = models::read_model_config(golden_teacher()),
                         .folder = golden_teacher()}};
  std::vector<Future<roles::Payload>> replies;
};

// A timeout is that of one question: others stand before it.
TEST_F(HeldTeacherTest, QuestionsBeforeItDoNotTakeItsTime) {
  ask();
  ASSERT_EQ(engine->deadlines.size(), 2u) << "one for each sequence";
  EXPECT_LT(engine->deadlines[0].remaining(), 101s);
  EXPECT_GT(engine->deadlines[1].remaining(), 150s);
}

TEST_F(HeldTeacherTest, WhatIsOpenOfAFailedRequestIsCancelled) {
  ask();
  ASSERT_EQ(engine->scores.size(), 2u);
  engine->scores[0].set_error(
      std::make_exception_ptr(Error(ErrorCode::kCorrupt, "a log-probability above 0")));
  EXPECT_EQ(engine->cancelled, 1);
  EXPECT_EQ(test::error_of([&] { replies[0].get(Deadline::after(30s)); }).code(),
            ErrorCode::kCorrupt);
}

// An answer is computed as long as one of the ranks that want a part of it is there. Afterwards a
// rank that wants another part asks anew.
TEST_F(HeldTeacherTest, QuestionsOfCallersThatAreGoneAreCancelled) {
  const auto gone = std::make_shared<std::atomic<bool>>(false),
             gone_too = std::make_shared<std::atomic<bool>>(false);
  ForwardRequest first = request_for(PayloadKind::kTargetLogProbs), second = first;
  first.parts = second.parts = 2;
  second.part = 1;
  const auto work = [&] {
    while (teacher.work()) {
    }
  };
  auto one = teacher.enqueue(first, roles::some_call(gone)),
       two = teacher.enqueue(second, roles::some_call(gone_too));
  work();
  ASSERT_EQ(engine->scores.size(), 2u) << "one for each sequence";
  gone->store(true);
  work();
  EXPECT_EQ(engine->cancelled, 0) << "the second part is waited for";
  gone_too->store(true);
  work();
  EXPECT_EQ(engine->cancelled, 2);
  EXPECT_EQ(test::code_of([&] { one.get(Deadline::after(30s)); }), ErrorCode::kCancelled);

  auto late = teacher.enqueue(second, roles::some_call());
  work();
  EXPECT_EQ(engine->scores.size(), 4u) << "asked anew";
  EXPECT_EQ(engine->cancelled, 2);
}

// Callers hear that the teacher is lost, and ask another replica: refused or hung.
class EngineIsLost : public EngineTeacherTest, public testing::WithParamInterface<ErrorCode> {};

TEST_P(EngineIsLost, EndsTheTeacher) {
  engine->before_score = [] { throw Error(GetParam(), "no answer"); };
  auto reply = teacher.enqueue(request_for(PayloadKind::kTopK), roles::some_call());
  EXPECT_EQ(test::error_of([&] {
              while (teacher.work()) {
              }
            }).code(),
            GetParam());
  EXPECT_EQ(test::error_of([&] { reply.get(Deadline::after(30s)); }).code(), ErrorCode::kPeerLost);
}

INSTANTIATE_TEST_SUITE_P(Errors, EngineIsLost,
                         testing::Values(ErrorCode::kUnavailable, ErrorCode::kTimeout),
                         [](const auto& code) { return std::string(to_string(code.param)); });

}  // namespace
}  // namespace retort::engines
