// What a generator makes of a backend that draws in its own way: in any order, slowly, or not at
// all; and what its own one finishes when.
#include "roles/generator/sample_backend.h"

#include <algorithm>
#include <atomic>

#include "roles/generator/replica_engine.h"
#include "tests/roles/fake_backend.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

class FakeBackendTest : public GeneratorServed {
 protected:
  FakeBackendTest() : FakeBackendTest(new FakeBackend) {}

  // Submitted and collected; drawn by the next steps.
  Future<Samples> asked(uint64_t id, uint64_t version = 0) {
    auto accepted =
        client.call("generator/0", kGenerateSubmit, generate_request(id, version, {{1, 2}, {3}}));
    handle(1);
    accepted.get(Deadline::after(30s));
    return collected(id, 0);
  }
  Future<Samples> collected(uint64_t id, int64_t have) {
    auto samples = client.call("generator/0", kGenerateCollect, CollectRequest{id, have});
    handle(1);
    return samples;
  }
  // Of the completions in an answer, in its order.
  static std::vector<int64_t> indices(Future<Samples>& reply) {
    std::vector<int64_t> indices;
    for (const IndexedCompletion& one : unpack_completions(reply.get(Deadline::after(30s))))
      indices.push_back(one.index);
    return indices;
  }
  // Checked; applied when nothing is drawn.
  Future<CommitReply> committed(uint64_t version, bool abort = false) {
    auto reply = client.call("generator/0", kWeightsCommit,
                             {.version = version, .receipts = {WeightReceipt{}}, .abort = abort});
    handle(1);
    return reply;
  }
  static void expect_samples(Future<Samples>& reply, uint64_t id, uint64_t version = 0) {
    const Samples samples = reply.get(Deadline::after(30s));
    std::vector<int32_t> expected;
    for (int64_t i = 0; i < 4; ++i)
      expected.push_back(FakeBackend::token_of(static_cast<int64_t>(id), i));
    EXPECT_TRUE(at::equal(samples.token_ids, at::tensor(expected, at::kInt))) << samples.token_ids;
    EXPECT_EQ(samples.request_id, id);
    EXPECT_EQ(samples.weight_version, version);
  }
  int64_t times(const std::string& call) const {
    return std::count(backend.log.begin(), backend.log.end(), call);
  }
  void finish_all(uint64_t request) {
    for (int64_t i = 0; i < 4; ++i)
      backend.finish(request, i);
  }

  FakeBackend& backend;

 private:
  explicit FakeBackendTest(FakeBackend* fake)
      : GeneratorServed(std::unique_ptr<SampleBackend>(fake)), backend(*fake) {}
};

TEST_F(FakeBackendTest, SamplesAreGivenOutAsTheyFinish) {
  using Indices = std::vector<int64_t>;
  auto first = asked(1), second = asked(2);
  int step = 0;
  backend.on_step = [&] {
    switch (++step) {
      case 1: backend.finish(2, 3); break;
      case 2: backend.finish(1, 2), backend.finish(2, 0); break;
      case 3: backend.finish(2, 1), backend.finish(1, 0), backend.finish(2, 2); break;
      default: backend.finish(1, 3), backend.finish(1, 1);
    }
    return true;
  };
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(indices(second), Indices{3}) << "long before the last of them is drawn";
  EXPECT_FALSE(first.ready());
  second = collected(2, 1);
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(indices(second), Indices{0});
  EXPECT_EQ(indices(first), Indices{2});

  // Who asks again for what it did not get gets it, with what came since.
  second = collected(2, 1);
  EXPECT_EQ(indices(second), Indices{0});
  ASSERT_TRUE(generator.work());
  second = collected(2, 1);
  EXPECT_EQ(indices(second), (Indices{0, 1, 2}));
  ASSERT_TRUE(generator.work());
  first = collected(1, 1);
  const Samples rest = first.get(Deadline::after(30s));
  EXPECT_TRUE(rest.last);
  EXPECT_TRUE(at::equal(rest.token_ids, at::tensor({100, 103, 101}, at::kInt))) << rest.token_ids;
  EXPECT_EQ(generator.requests_served(), 2);
  EXPECT_EQ(generator.tokens_drawn(), 8);
  EXPECT_FALSE(generator.work()) << "there is nothing more to draw";
}

// The trainer's end, of a request whose first sample is there.
class StreamTest : public FakeBackendTest {
 protected:
  // Ids below `vocab_rows` are taken; those of the samples are 100 to 103.
  void begin(int64_t vocab_rows) {
    const GenerateRequest request = generate_request(1, 0, {{1, 2}, {3}});
    auto accepted = client.call("generator/0", kGenerateSubmit, request);
    handle(1);
    accepted.get(Deadline::after(30s));
    stream = std::make_shared<SampleStream>(expected_samples(request, vocab_rows, 0),
                                            [this](const IndexedCompletion&) { ++heard; });
    done = collect_samples(client, "generator/0", stream, 30s);
    handle(1);
    backend.on_step = [this] {
      if (times("step") == 1) backend.finish(1, 2);
      return true;
    };
    ASSERT_TRUE(generator.work());
  }

  std::atomic<int> heard{0};
  std::shared_ptr<SampleStream> stream;
  Future<Empty> done;
};

TEST_F(StreamTest, CancellingBetweenTwoSamplesGivesTheRequestUp) {
  begin(200);
  handle(1);  // the next collect
  EXPECT_EQ(heard, 1);
  done.cancel();
  EXPECT_EQ(test::code_of([&] { done.get(Deadline::after(30s)); }), ErrorCode::kCancelled);
  EXPECT_TRUE(test::wait_until([&] {
    generator.work();
    return times("cancel 1") == 1;
  }));
}

TEST_F(StreamTest, WhatCannotBeASampleEndsIt) {
  begin(50);
  done.get(Deadline::after(30s));
  EXPECT_EQ(heard, 0);
  EXPECT_EQ(test::code_of([&] { stream->whole(); }), ErrorCode::kCorrupt);
}

TEST_F(FakeBackendTest, CallsAreHandledWhileASlowOneDrawsAndNewWeightsWait) {
  auto samples = asked(1), coming = asked(2, 5);
  auto commit = committed(5);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(generator.work());
    auto info = client.call("generator/0", kGeneratorInfo, {});
    handle(1);
    EXPECT_EQ(info.get(Deadline::after(30s)).weight_version, 0u);
  }
  EXPECT_FALSE(samples.ready());
  EXPECT_FALSE(commit.ready());
  EXPECT_EQ(times("apply"), 0);

  finish_all(1);
  ASSERT_TRUE(generator.work());
  expect_samples(samples, 1);
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(commit.get(Deadline::after(30s)).version, 5u);
  EXPECT_EQ(times("apply"), 1);
  EXPECT_EQ(times("submit 2"), 0) << "its weights were not in use yet";

  ASSERT_TRUE(generator.work());
  finish_all(2);
  ASSERT_TRUE(generator.work());
  expect_samples(coming, 2, 5);
}

TEST_F(FakeBackendTest, OneThatFailsIsLostToAllWhoseSamplesItDraws) {
  auto first = asked(1), second = asked(2), coming = asked(3, 1);
  backend.on_step = [&]() -> bool {
    backend.finish(1, 0);
    throw Error(ErrorCode::kUnavailable, "the engine's process ended");
  };
  EXPECT_EQ(test::code_of([&] { generator.work(); }), ErrorCode::kUnavailable);
  for (auto* reply : {&first, &second}) {
    const Error error = test::error_of([&] { reply->get(Deadline::after(30s)); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("the engine's process ended"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(coming.ready()) << "it was not drawn";
  coming.cancel();  // or the agent's end waits for it
}

TEST_F(FakeBackendTest, OneThatIsIdleWithoutSamplesIsLost) {
  auto samples = asked(1);
  backend.on_step = [] { return false; };
  EXPECT_EQ(test::code_of([&] { generator.work(); }), ErrorCode::kUnavailable);
  EXPECT_EQ(test::code_of([&] { samples.get(Deadline::after(30s)); }), ErrorCode::kPeerLost);
}

TEST_F(FakeBackendTest, ARequestThatTheEngineGivesUpFailsAlone) {
  auto first = asked(1), second = asked(2);
  backend.on_step = [&] {
    backend.finish(1, 2);
    backend.fail(1, Error(ErrorCode::kResourceExhausted, "the engine has no room for it"));
    finish_all(2);
    return true;
  };
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(test::code_of([&] { first.get(Deadline::after(30s)); }), ErrorCode::kResourceExhausted);
  expect_samples(second, 2);
  EXPECT_FALSE(generator.work());
}

TEST_F(FakeBackendTest, ARequestThatTheEngineDoesNotTakeFailsAlone) {
  auto first = asked(1);
  ASSERT_TRUE(generator.work());
  backend.refuse = true;
  auto second = asked(2);
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(test::code_of([&] { second.get(Deadline::after(30s)); }), ErrorCode::kInvalidArgument);
  finish_all(1);
  ASSERT_TRUE(generator.work());
  expect_samples(first, 1);
}

TEST_F(FakeBackendTest, ACommitWithAbortCancelsWhatIsDrawn) {
  auto drawn = asked(1), coming = asked(2, 3);
  backend.on_step = [&] {
    if (times("apply") == 0) backend.finish(1, 1);
    return true;
  };
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(indices(drawn), std::vector<int64_t>{1});
  drawn = collected(1, 1);
  auto commit = committed(3, true);
  EXPECT_EQ(test::code_of([&] { drawn.get(Deadline::after(30s)); }), ErrorCode::kCancelled);
  EXPECT_EQ(times("cancel 1"), 1);

  ASSERT_TRUE(generator.work());
  EXPECT_EQ(commit.get(Deadline::after(30s)).version, 3u);
  ASSERT_TRUE(generator.work());
  finish_all(2);
  ASSERT_TRUE(generator.work());
  expect_samples(coming, 2, 3);
}

// The compute thread is in the middle of a step until the bucket is answered.
TEST_F(FakeBackendTest, BucketsAreTakenWhileAStepGoesOn) {
  auto samples = asked(1);
  std::promise<void> entered, answered;
  backend.on_step = [&] {
    entered.set_value();
    EXPECT_EQ(answered.get_future().wait_for(60s), std::future_status::ready);
    finish_all(1);
    return true;
  };
  auto compute = std::async(std::launch::async, [&] { return generator.work(); });
  ASSERT_EQ(entered.get_future().wait_for(30s), std::future_status::ready);
  auto bucket = client.call("generator/0", kWeightsBucket, {.version = 7, .parts = {}});
  EXPECT_NO_THROW(bucket.get(Deadline::after(20s)));
  EXPECT_FALSE(samples.ready()) << "the step goes on";
  answered.set_value();
  EXPECT_TRUE(compute.get());
  expect_samples(samples, 1);
  using Staged = std::vector<std::pair<uint64_t, std::string>>;
  EXPECT_EQ(backend.staged, (Staged{{7, "student/0"}}));
}

// One sequence at a time: the samples of a request are there one after the other, long before it is
// done.
TEST(ReplicaEngine, GivesSamplesBeforeTheirRequestIsDone) {
  const Prompts prompts{{1, 2, 3}, {40}};
  const GenerateRequest request = generate_request(1, 0, prompts);
  ReplicaEngine engine(golden_decoder(), models::Tokenizer::load(golden_model()),
                       {.num_blocks = 64, .max_sequences = 1});
  const uint64_t id = engine.submit(request);
  std::vector<FinishedSample> samples;
  int64_t deliveries = 0;
  while (engine.step()) {
    std::vector<FinishedSample> more = engine.finished();
    if (!more.empty()) ++deliveries;
    std::move(more.begin(), more.end(), std::back_inserter(samples));
  }
  EXPECT_EQ(deliveries, 4);
  EXPECT_TRUE(engine.finished().empty()) << "each is given once";

  const auto expected = drawn_alone(golden_decoder(), request, prompts);
  ASSERT_EQ(samples.size(), expected.size());
  for (const FinishedSample& sample : samples) {
    EXPECT_EQ(sample.request, id);
    EXPECT_FALSE(sample.error);
    const models::Completion& same = expected.at(static_cast<size_t>(sample.index));
    EXPECT_EQ(sample.completion.token_ids, same.token_ids) << sample.index;
    EXPECT_EQ(sample.completion.logps, same.logps) << sample.index;
    EXPECT_EQ(sample.completion.finish_reason, same.finish_reason) << sample.index;
  }
}

TEST(ReplicaEngine, GivesNothingOfACancelledRequest) {
  const Prompts prompts{{1, 2, 3}, {40}};
  ReplicaEngine engine(golden_decoder(), models::Tokenizer::load(golden_model()), engine_options());
  const uint64_t cancelled = engine.submit(generate_request(1, 0, prompts)),
                 kept = engine.submit(generate_request(2, 0, prompts));
  ASSERT_TRUE(engine.step());
  engine.cancel(cancelled);
  while (engine.step()) {
  }

  // Also once its samples are finished, and were not asked for.
  const uint64_t finished = engine.submit(generate_request(3, 0, prompts));
  while (engine.step()) {
  }
  engine.cancel(finished);
  const std::vector<FinishedSample> samples = engine.finished();
  EXPECT_EQ(samples.size(), 4u);
  for (const FinishedSample& sample : samples)
    EXPECT_EQ(sample.request, kept);
}

}  // namespace
}  // namespace retort::roles
