// What the model and its template get to read and to write in an episode: variables of the row, and
// numbers of calls.
#include <gtest/gtest.h>

#include <string>

#include "roles/episodes/episode.h"
#include "tests/roles/episode_support.h"

namespace retort::roles {
namespace {

using Next = Episode::Next;

class EpisodeWordsTest : public testing::Test {
 protected:
  Episode make(const std::string& row) { return {setting, {.seed = 4, .row = row}}; }
  Episode open() {
    Episode episode = make(row_of("Add"));
    episode.opened({.tools = kAddTool});
    return episode;
  }
  static EpisodeAnswer answer_of(const std::string& text) {
    return {.messages = R"([{"role": "tool", "content": ")" + text + R"("}])"};
  }
  static models::Completion ended(Episode& episode) {
    EXPECT_EQ(episode.next(), Next::kClose);
    episode.closed({.reward = 1});
    return episode.take();
  }

  const EpisodeOptions options{.max_turns = 4, .max_tokens = 1000};
  const TurnWords words{tool_chat(), tool_tokenizer(),
                        models::TurnSuffix(tool_chat(), tool_tokenizer())};
  Episode::Setting setting{.words = &words,
                           .options = &options,
                           .draw = {.max_new_tokens = 50, .eos_token_ids = {turn_end()}},
                           .weight_version = 9};
};

// As Qwen3's enable_thinking: what a row says to the template holds for each turn.
TEST_F(EpisodeWordsTest, TheRowsVariablesAreThoseOfEachTurn) {
  std::string source = kToolTemplate;
  const std::string prompt = "{{- '<|im_start|>assistant\\n' }}";
  source.insert(source.rfind(prompt) + prompt.size(),
                "{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not "
                "enable_thinking else '<think>\\n' }}");
  const auto chat = models::ChatTemplate::from_source(source, "", "<|im_end|>");
  const TurnWords thinking{chat, tool_tokenizer(), models::TurnSuffix(chat, tool_tokenizer())};
  setting.words = &thinking;
  const auto play = [&](const std::string& more) {
    Episode episode = make(R"({"messages": [{"role": "user", "content": "Add"}])" + more + "}");
    episode.opened({.tools = kAddTool});
    episode.drawn(TalkingBackend::turn_of(add_call(1)));
    if (episode.next() == Next::kStep) {
      episode.answered(answer_of("2"));
      episode.drawn(TalkingBackend::turn_of("Done."));
    }
    return ended(episode);
  };
  const auto count = [](const models::Completion& whole, const std::string& part) {
    const std::string text = tool_tokenizer().decode(whole.token_ids, false);
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++found;
    return found;
  };

  const models::Completion quiet = play(R"(, "chat_template_kwargs": {"enable_thinking": false})");
  EXPECT_EQ(count(quiet, "assistant\n<think>\n\n</think>\n\n"), 2) << "one before each turn";
  EXPECT_EQ(record_of(quiet)["calls"], 1) << "the call stands behind the thought";
  for (const char* more : {"", R"(, "chat_template_kwargs": null)"}) {
    const models::Completion loud = play(more);
    EXPECT_EQ(count(loud, "assistant\n<think>\n"), 2);
    EXPECT_EQ(count(loud, "</think>"), 0);
  }
}

TEST_F(EpisodeWordsTest, NumbersOfACallKeepTheirDigits) {
  const std::string number = "123456789012345678901234567890";
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of(
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": " + number + "}}\n</tool_call>"));
  ASSERT_EQ(episode.next(), Next::kStep);
  EXPECT_NE(episode.to_step(1).calls.find(number + "}"), std::string::npos)
      << episode.to_step(1).calls;
  episode.answered(answer_of("2"));
  episode.drawn(TalkingBackend::turn_of("Done."));
  EXPECT_NE(ended(episode).episode.find(number + "}"), std::string::npos);
}

}  // namespace
}  // namespace retort::roles
