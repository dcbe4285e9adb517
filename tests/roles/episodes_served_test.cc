// The generator's role in front of episodes: they arrive with their spans, and new weights wait for
// them or end them.
#include "tests/roles/episode_support.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using models::SpanSource;
using test::code_of;

class EpisodesServed : public GeneratorServed {
 protected:
  EpisodesServed() : EpisodesServed(std::make_shared<ScriptedEnvironment>(), new TalkingBackend) {}

  Future<Samples> asked(uint64_t id) {
    auto accepted = client.call("generator/0", kGenerateSubmit, episode_request(id, 1, 2));
    handle(1);
    accepted.get(Deadline::after(30s));
    return collected(id, 0);
  }
  Future<Samples> collected(uint64_t id, int64_t have) {
    auto samples = client.call("generator/0", kGenerateCollect, CollectRequest{id, have});
    handle(1);
    return samples;
  }
  Future<CommitReply> committed(uint64_t version, bool abort) {
    auto reply = client.call("generator/0", kWeightsCommit,
                             {.version = version, .receipts = {WeightReceipt{}}, .abort = abort});
    handle(1);
    return reply;
  }

  std::shared_ptr<ScriptedEnvironment> environment;
  TalkingBackend& engine;

 private:
  EpisodesServed(std::shared_ptr<ScriptedEnvironment> scripted, TalkingBackend* talking)
      : GeneratorServed(episodes_over(std::unique_ptr<SampleBackend>(talking), scripted)),
        environment(std::move(scripted)),
        engine(*talking) {
    engine.say = [](const GenerateRequest& turn) {
      return TalkingBackend::turn_of(turn.continues == 0 ? add_call(1) : "Done.");
    };
  }
};

TEST_F(EpisodesServed, ArriveWithTheirSpans) {
  auto reply = asked(1);
  draw_all();
  const Samples samples = reply.get(Deadline::after(30s));
  EXPECT_NO_THROW(
      check_samples(samples, expected_samples(episode_request(1, 1, 2), 300, 500), "generator/0"));
  int64_t drawn = 0;
  for (const IndexedCompletion& one : unpack_completions(samples)) {
    ASSERT_EQ(one.completion.spans.size(), 4u);
    EXPECT_EQ(one.completion.spans[0].source, SpanSource::kPrompt);
    EXPECT_EQ(one.completion.spans[2].source, SpanSource::kEnvironment);
    drawn += drawn_tokens(one.completion);
  }
  EXPECT_EQ(generator.tokens_drawn(), drawn) << "not those of prompts and answers";
}

TEST_F(EpisodesServed, NewWeightsWaitForThem) {
  environment->delay = 5ms;
  std::vector<uint64_t> versions;
  engine.say = [&, say = engine.say](const GenerateRequest& turn) {
    versions.push_back(engine.weight_version());
    return say(turn);
  };
  auto reply = asked(1);
  ASSERT_TRUE(generator.work());
  auto commit = committed(4, /*abort=*/false);
  draw_all();
  EXPECT_EQ(reply.get(Deadline::after(30s)).weight_version, 0u);
  EXPECT_EQ(commit.get(Deadline::after(30s)).version, 4u);
  EXPECT_EQ(versions, std::vector<uint64_t>(4, 0)) << "two turns of each";
}

TEST_F(EpisodesServed, NewWeightsWithAbortEndThem) {
  environment->hangs = [](const std::string& verb, uint64_t) { return verb == "step"; };
  auto reply = asked(1);
  while (environment->turns.size() < 2)
    ASSERT_TRUE(generator.work());
  auto commit = committed(4, /*abort=*/true);
  EXPECT_EQ(code_of([&] { reply.get(Deadline::after(30s)); }), ErrorCode::kCancelled);
  EXPECT_EQ(environment->closed.size(), 2u);
  EXPECT_EQ(environment->cancelled, 2);
  ASSERT_TRUE(generator.work());
  EXPECT_EQ(commit.get(Deadline::after(30s)).version, 4u);

  // Those for the new weights say so.
  environment->hangs = nullptr;
  GenerateRequest coming = episode_request(2, 1, 1);
  coming.weight_version = 4;
  auto accepted = client.call("generator/0", kGenerateSubmit, coming);
  handle(1);
  accepted.get(Deadline::after(30s));
  reply = collected(2, 0);
  draw_all();
  const Samples samples = reply.get(Deadline::after(30s));
  EXPECT_EQ(unpack_completions(samples).at(0).completion.spans.at(1).weight_version, 4u);
}

}  // namespace
}  // namespace retort::roles
