// Answers by rule as episodes, as a generator sends them: with an environment that adds a word to
// the prompt and answers the model's first token with two of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/generation/request.h"
#include "tests/data/word_tokenizer.h"

namespace retort::test {

// What such an environment says when it closes an episode; `metrics` is a JSON object.
inline std::string played_record(const std::string& reward, const std::string& metrics,
                                 const std::string& unscorable = "") {
  return R"({"reward": )" + reward + R"(, "metrics": )" + metrics +
         R"(, "messages": [{"role": "user", "content": "w1"}], "turns": 2, "calls": 1,)"
         R"( "failed_calls": 0, "malformed": 0, "unscorable": )" +
         (unscorable.empty() ? "null" : "\"" + unscorable + "\"") + "}";
}

// `answer` with that environment: `added` stands behind the row's prompt.
inline models::Completion as_episode(const std::vector<int32_t>& prompt,
                                     const models::Completion& answer, const std::string& record,
                                     int32_t added = 40) {
  models::Completion episode{.spans = {}, .episode = record, .finish_reason = answer.finish_reason};
  const auto say = [&](models::SpanSource source, const std::vector<int32_t>& ids,
                       const std::vector<float>& logps) {
    if (ids.empty()) return;
    episode.token_ids.insert(episode.token_ids.end(), ids.begin(), ids.end());
    episode.logps.insert(episode.logps.end(), logps.begin(), logps.end());
    const uint64_t version = source == models::SpanSource::kModel ? 1 : 0;
    episode.spans.push_back({source, version, static_cast<int64_t>(ids.size())});
  };

  std::vector<int32_t> begun = prompt;
  begun.push_back(word(added));
  say(models::SpanSource::kPrompt, begun, std::vector<float>(begun.size()));
  say(models::SpanSource::kModel, {answer.token_ids.front()}, {answer.logps.front()});
  say(models::SpanSource::kEnvironment, {word(11), word(12)}, {0, 0});
  say(models::SpanSource::kModel, {answer.token_ids.begin() + 1, answer.token_ids.end()},
      {answer.logps.begin() + 1, answer.logps.end()});
  episode.sampling_logps = episode.logps;
  return episode;
}

// One that its environment gave up in the middle of a turn, for this reason.
inline models::Completion lost_episode(const std::vector<int32_t>& prompt,
                                       const models::Completion& answer, const std::string& why) {
  models::Completion episode = as_episode(prompt, answer, played_record("null", "{}", why));
  episode.finish_reason = models::FinishReason::kLength;
  return episode;
}

}  // namespace retort::test
