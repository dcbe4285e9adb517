// Episodes of an engine of ours are, bit for bit, what a loop of fresh prompts draws, wherever they
// begin anew.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "roles/generator/replica_engine.h"
#include "tests/roles/episode_support.h"
#include "tests/roles/generator_fixture.h"
#include "tests/roles/nano_model.h"

namespace retort::roles {
namespace {

using Json = nlohmann::ordered_json;
using models::FinishReason;
using models::SpanSource;

// A small model whose turns end often: any of many tokens ends one.
models::Decoder talkative_decoder() {
  models::ModelConfig config = nano_model(models::Family::kQwen3, true, 2);
  config.vocab_size = 300;
  config.max_position_embeddings = 1024;
  return models::Decoder::random(config, 3, at::kFloat);
}
std::vector<int64_t> many_ends() {
  std::vector<int64_t> ends{turn_end()};
  for (int64_t id = 10; id < 300; id += 12)
    ends.push_back(id);
  return ends;
}
GenerateRequest talk(uint64_t id, int64_t prompts, int64_t generations) {
  GenerateRequest request = episode_request(id, prompts, generations);
  request.draw.eos_token_ids = many_ends();
  return request;
}

constexpr int64_t kTalkTurns = 5;
constexpr int64_t kTalkTokens = 300;

// What the episodes of `request` must be: each turn a prompt of its own for an engine that keeps
// nothing, and what answers it put behind it as text of the template.
std::vector<models::Completion> loop_of_fresh_prompts(const GenerateRequest& request) {
  ReplicaEngine engine(talkative_decoder(), tool_tokenizer(),
                       {.num_blocks = 200, .share_prefixes = false});
  std::vector<models::Completion> all;
  for (int64_t i = 0; i < request.sample_ids.numel(); ++i) {
    const EpisodeStart& start =
        request.episodes.at(static_cast<size_t>(i / request.num_generations));
    const std::string question = Json::parse(start.row)["messages"][0]["content"];
    models::Completion whole;
    const auto add = [&](SpanSource source, const std::vector<int32_t>& ids) {
      whole.token_ids.insert(whole.token_ids.end(), ids.begin(), ids.end());
      whole.logps.resize(whole.token_ids.size());
      whole.sampling_logps.resize(whole.token_ids.size());
      whole.spans.push_back({.source = source, .tokens = static_cast<int64_t>(ids.size())});
    };
    add(SpanSource::kPrompt,
        tool_ids("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n"));
    const size_t prompt = whole.token_ids.size();

    for (int64_t turn = 1;; ++turn) {
      GenerateRequest fresh = generate_request(1, 0, {whole.token_ids}, 1);
      fresh.sample_ids = at::tensor({request.sample_ids[i].item<int64_t>()}, at::kLong);
      fresh.draw = request.draw;
      fresh.draw.max_new_tokens =
          std::min(request.draw.max_new_tokens,
                   kTalkTokens - static_cast<int64_t>(whole.token_ids.size() - prompt));
      engine.submit(fresh);
      while (engine.step()) {
      }
      const models::Completion drawn = engine.finished().at(0).completion;
      const size_t before = whole.token_ids.size();
      add(SpanSource::kModel, drawn.token_ids);
      std::copy(drawn.logps.begin(), drawn.logps.end(), whole.logps.begin() + before);
      std::copy(drawn.sampling_logps.begin(), drawn.sampling_logps.end(),
                whole.sampling_logps.begin() + before);
      whole.finish_reason = FinishReason::kLength;
      if (drawn.finish_reason == FinishReason::kLength || turn == kTalkTurns) break;

      std::vector<int32_t> answer =
          tool_ids("\n<|im_start|>user\n" + ScriptedEnvironment::answer_text(start.seed, turn) +
                   "<|im_end|>\n<|im_start|>assistant\n");
      if (drawn.token_ids.back() != turn_end()) answer.insert(answer.begin(), turn_end());
      if (whole.token_ids.size() - prompt + answer.size() > kTalkTokens) break;
      add(SpanSource::kEnvironment, answer);
      if (whole.token_ids.size() - prompt == kTalkTokens) break;
    }
    all.push_back(std::move(whole));
  }
  return all;
}

void expect_same(const std::vector<FinishedSample>& got,
                 const std::vector<models::Completion>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const models::Completion& one = got[i].completion;
    EXPECT_EQ(got[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(one.token_ids, expected[i].token_ids) << i;
    EXPECT_EQ(one.logps, expected[i].logps) << i;
    EXPECT_EQ(one.sampling_logps, expected[i].sampling_logps) << i;
    EXPECT_EQ(one.spans, expected[i].spans) << i;
    EXPECT_EQ(one.finish_reason, expected[i].finish_reason) << i;
  }
}

TEST(EpisodesOfAReplica, AreWhatALoopOfFreshPromptsDraws) {
  const GenerateRequest request = talk(1, 2, 4);
  const std::vector<models::Completion> expected = loop_of_fresh_prompts(request);
  size_t most_spans = 0;
  for (const models::Completion& one : expected)
    most_spans = std::max(most_spans, one.spans.size());
  ASSERT_GE(most_spans, 6u) << "some of several turns";

  for (const models::EngineOptions& engine :
       {models::EngineOptions{.num_blocks = 200},
        models::EngineOptions{.num_blocks = 200, .share_prefixes = false},
        models::EngineOptions{.num_blocks = 40, .max_sequences = 3}})
    for (const bool slow : {false, true}) {
      const auto environment = std::make_shared<ScriptedEnvironment>();
      environment->user_turns = true;
      environment->tools = "[]";
      if (slow) environment->delay = 3ms;
      const auto backend = episodes_over(
          std::make_unique<ReplicaEngine>(talkative_decoder(), tool_tokenizer(), engine),
          environment, {.max_turns = kTalkTurns, .max_tokens = kTalkTokens});
      const uint64_t number = backend->submit(request);
      const std::vector<FinishedSample> samples = all_of(*backend);
      expect_same(samples, expected);
      for (const FinishedSample& sample : samples) {
        EXPECT_EQ(sample.request, number);
        EXPECT_EQ(record_of(sample.completion)["reward"], sample.index < 4 ? 3.5 : 4.0);
      }
      EXPECT_EQ(environment->closed.size(), 8u);
      EXPECT_FALSE(backend->step()) << "nothing is unfinished";
    }
}

// An episode that begins anew, wherever it was, comes to the same bits.
TEST(EpisodesOfAReplica, AreTheSameWhenTheyBeginAnew) {
  const GenerateRequest request = talk(1, 1, 4);
  const std::vector<models::Completion> expected = loop_of_fresh_prompts(request);
  const auto environment = std::make_shared<ScriptedEnvironment>();
  environment->user_turns = true;
  environment->tools = "[]";
  // The first attempt of each fails somewhere else.
  environment->fails = [&](const std::string& verb, uint64_t episode) -> std::optional<Error> {
    const bool fails = (episode == 1 && verb == "open") || (episode == 2 && verb == "step") ||
                       (episode == 3 && verb == "close");
    if (!fails) return std::nullopt;
    return Error(ErrorCode::kPeerLost, "it is gone");
  };
  const auto backend =
      episodes_over(std::make_unique<ReplicaEngine>(talkative_decoder(), tool_tokenizer(),
                                                    models::EngineOptions{.num_blocks = 200}),
                    environment, {.max_turns = kTalkTurns, .max_tokens = kTalkTokens});
  backend->submit(request);
  const std::vector<FinishedSample> samples = all_of(*backend);
  expect_same(samples, expected);
  int64_t restarts = 0;
  for (const FinishedSample& sample : samples)
    restarts += record_of(sample.completion)["restarts"].get<int64_t>();
  EXPECT_EQ(restarts, static_cast<int64_t>(environment->opened.size()) - 4);
  EXPECT_GE(restarts, 2);
  for (const OpenEpisode& opened : environment->opened)
    EXPECT_EQ(opened.seed, 7u);
}

}  // namespace
}  // namespace retort::roles
