// One episode without an engine or an environment: which tokens are whose, when it ends, and what
// it says that it came to.
#include "roles/episodes/episode.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/roles/episode_support.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using Json = nlohmann::ordered_json;
using models::FinishReason;
using models::SpanSource;
using Next = Episode::Next;

class EpisodeTest : public testing::Test {
 protected:
  Episode make(const std::string& row = row_of("Add")) {
    return {setting, {.seed = 4, .row = row}};
  }
  // Opened, with the tool `add`.
  Episode open() {
    Episode episode = make();
    episode.opened({.tools = kAddTool});
    return episode;
  }
  static EpisodeAnswer answer_of(const std::string& text, int64_t failed_calls = 0) {
    return {.messages = R"([{"role": "tool", "content": ")" + text + R"("}])",
            .failed_calls = failed_calls};
  }
  // What stands behind the token that ends a turn, as the template has it.
  static std::vector<int32_t> suffix_of(const std::string& role, const std::string& text) {
    return tool_ids("\n<|im_start|>" + role + "\n" + text + "<|im_end|>\n<|im_start|>assistant\n");
  }
  static models::Completion ended(Episode& episode, const ClosedEpisode& closed = {.reward = 1}) {
    EXPECT_EQ(episode.next(), Next::kClose);
    episode.closed(closed);
    EXPECT_EQ(episode.next(), Next::kEnd);
    return episode.take();
  }

  EpisodeOptions options{.max_turns = 4, .max_tokens = 1000};
  const TurnWords words{tool_chat(), tool_tokenizer(),
                        models::TurnSuffix(tool_chat(), tool_tokenizer())};
  Episode::Setting setting{.words = &words,
                           .options = &options,
                           .draw = {.max_new_tokens = 50, .eos_token_ids = {turn_end()}},
                           .weight_version = 9};
};

// The tokens of a prompt, a turn, what answers it and another turn, with the numbers of those that
// the model drew.
void expect_joined(const models::Completion& whole, const std::vector<int32_t>& prompt,
                   const models::Completion& first, const std::vector<int32_t>& suffix,
                   const models::Completion& second) {
  std::vector<int32_t> ids;
  std::vector<float> logps, sampling_logps;
  const auto add = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const auto add_turn = [&](const models::Completion& turn) {
    add(ids, turn.token_ids);
    add(logps, turn.logps);
    add(sampling_logps, turn.sampling_logps);
  };
  const auto add_others = [&](const std::vector<int32_t>& tokens) {
    add(ids, tokens);
    logps.resize(ids.size());
    sampling_logps.resize(ids.size());
  };
  add_others(prompt);
  add_turn(first);
  add_others(suffix);
  add_turn(second);

  EXPECT_EQ(whole.token_ids, ids);
  EXPECT_EQ(whole.logps, logps);
  EXPECT_EQ(whole.sampling_logps, sampling_logps);
  EXPECT_EQ(whole.finish_reason, FinishReason::kEos);
  const auto size = [](const auto& of) { return static_cast<int64_t>(of.size()); };
  EXPECT_EQ(whole.spans,
            (std::vector<models::Span>{{SpanSource::kPrompt, 0, size(prompt)},
                                       {SpanSource::kModel, 9, size(first.token_ids)},
                                       {SpanSource::kEnvironment, 0, size(suffix)},
                                       {SpanSource::kModel, 9, size(second.token_ids)}}));
}

TEST_F(EpisodeTest, ATurnWithACallIsAnswered) {
  Episode episode = make();
  EXPECT_EQ(episode.next(), Next::kOpen);
  EXPECT_EQ(episode.to_open(5).episode, 5u);
  EXPECT_EQ(episode.to_open(5).seed, 4u);
  EXPECT_EQ(episode.to_open(5).row, row_of("Add"));

  episode.opened({.tools = kAddTool});
  ASSERT_EQ(episode.next(), Next::kDraw);
  const std::string prompt = tool_chat()
                                 .render(R"([{"role": "user", "content": "Add"}])", true,
                                         std::string(R"({"tools": )") + kAddTool + "}")
                                 .text;
  EXPECT_NE(prompt.find("add"), std::string::npos) << prompt;
  const std::vector<int32_t> prompt_ids = tool_ids(prompt);
  EXPECT_EQ(episode.ids(), prompt_ids);
  EXPECT_EQ(episode.continues(), 0);
  EXPECT_EQ(episode.draw().max_new_tokens, 50);

  const models::Completion first = TalkingBackend::turn_of("Well. " + add_call(2));
  episode.drawn(first);
  ASSERT_EQ(episode.next(), Next::kStep);
  const EpisodeTurn turn = episode.to_step(5);
  EXPECT_EQ(turn.episode, 5u);
  EXPECT_EQ(turn.turn, 1);
  EXPECT_EQ(turn.text, "Well.");
  EXPECT_EQ(Json::parse(turn.calls),
            Json::parse(R"([{"id": "c0", "name": "add", "arguments": {"a": 2}}])"));

  episode.answered(answer_of("4"));
  ASSERT_EQ(episode.next(), Next::kDraw);
  const std::vector<int32_t> suffix = suffix_of("tool", "4");
  EXPECT_EQ(episode.continues(), static_cast<int64_t>(first.token_ids.size() + suffix.size()));
  const models::Completion second = TalkingBackend::turn_of("It is 4.");
  episode.drawn(second);

  const models::Completion whole = ended(episode, {.reward = 0.5, .metrics = R"({"solved": 1})"});
  expect_joined(whole, prompt_ids, first, suffix, second);

  EXPECT_EQ(record_of(whole), Json::parse(R"({
      "reward": 0.5, "metrics": {"solved": 1},
      "messages": [
        {"role": "user", "content": "Add"},
        {"role": "assistant", "content": "Well.", "tool_calls": [
          {"type": "function", "id": "c0", "function": {"name": "add", "arguments": {"a": 2}}}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "It is 4."}],
      "turns": 2, "calls": 1, "failed_calls": 0, "malformed": 0, "restarts": 0})"));
}

// A conversation renders to the tokens that were drawn and put between: nothing is said twice, and
// nothing is left out.
TEST_F(EpisodeTest, TokensAreThoseOfTheWholeConversation) {
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of(add_call(2)));
  episode.answered(answer_of("4"));
  episode.drawn(TalkingBackend::turn_of("Then " + add_call(3)));
  episode.answered(answer_of("6"));
  episode.drawn(TalkingBackend::turn_of("Done."));
  const models::Completion whole = ended(episode);
  const std::string text = tool_tokenizer().decode(whole.token_ids, false);
  EXPECT_NE(text.find(add_call(2) +
                      "<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n"
                      "<|im_start|>assistant\nThen " +
                      add_call(3) +
                      "<|im_end|>\n<|im_start|>tool\n6<|im_end|>\n"
                      "<|im_start|>assistant\nDone.<|im_end|>"),
            std::string::npos)
      << text;
  EXPECT_EQ(record_of(whole)["calls"], 2);
  EXPECT_EQ(record_of(whole)["messages"][3]["tool_calls"][0]["id"], "c1");
}

TEST_F(EpisodeTest, AThoughtIsNoAnswer) {
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of("<think>\nHm.\n</think>\n\n" + add_call(1)));
  ASSERT_EQ(episode.next(), Next::kStep);
  EXPECT_EQ(episode.to_step(1).text, "");
  episode.answered(answer_of("2"));
  episode.drawn(TalkingBackend::turn_of("Done."));
  const Json record = record_of(ended(episode));
  EXPECT_EQ(record["messages"][1]["content"], "");
  EXPECT_EQ(record["messages"][1]["reasoning_content"], "Hm.");
  EXPECT_FALSE(record["messages"][3].contains("reasoning_content"));
}

TEST_F(EpisodeTest, ATurnWithoutCallsEndsIt) {
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of("No tools."));
  const models::Completion whole = ended(episode, {});
  EXPECT_EQ(whole.finish_reason, FinishReason::kEos);
  EXPECT_TRUE(record_of(whole)["reward"].is_null());
  EXPECT_FALSE(record_of(whole).contains("unscorable"));
}

TEST_F(EpisodeTest, AnEnvironmentMayAnswerTurnsWithoutCalls) {
  setting.answers_turns = true;
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of("Hello."));
  ASSERT_EQ(episode.next(), Next::kStep);
  EXPECT_EQ(episode.to_step(1).text, "Hello.");
  EXPECT_EQ(episode.to_step(1).calls, "[]");
  episode.answered({.messages = R"([{"role": "user", "content": "Bye."}])"});
  ASSERT_EQ(episode.next(), Next::kDraw);
  const std::vector<int32_t> suffix = suffix_of("user", "Bye.");
  EXPECT_TRUE(std::equal(suffix.rbegin(), suffix.rend(), episode.ids().rbegin()));
}

TEST_F(EpisodeTest, ACallThatCannotBeReadIsText) {
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of("<tool_call>\n{\"name\": \"add\", \n</tool_call>"));
  const models::Completion whole = ended(episode);
  const Json record = record_of(whole);
  EXPECT_EQ(record["malformed"], 1);
  EXPECT_EQ(record["calls"], 0);
  EXPECT_FALSE(record["messages"].back().contains("tool_calls"));
  EXPECT_NE(record["messages"].back()["content"].get<std::string>().find("add"), std::string::npos);
}

// The engine may know another token that ends a turn; the template's comes from the environment
// then, and a turn is none of the model's tokens less.
TEST_F(EpisodeTest, AnEndThatIsNotTheTemplatesIsFollowedByThat) {
  const int32_t other = tool_tokenizer().token_to_id("<|endoftext|>");
  setting.draw.eos_token_ids = {other};
  Episode episode = open();
  EXPECT_EQ(episode.draw().eos_token_ids, (std::vector<int64_t>{other, turn_end()}));
  const models::Completion turn = TalkingBackend::turn_of(add_call(1), other);
  episode.drawn(turn);
  ASSERT_EQ(episode.next(), Next::kStep) << "its text is read without the end";
  episode.answered(answer_of("2"));
  std::vector<int32_t> expected = turn.token_ids;
  expected.push_back(turn_end());
  for (const int32_t id : suffix_of("tool", "2"))
    expected.push_back(id);
  EXPECT_EQ(std::vector<int32_t>(episode.ids().end() - episode.continues(), episode.ids().end()),
            expected);
  episode.drawn(TalkingBackend::turn_of("Done."));
  EXPECT_EQ(ended(episode).spans.at(2).tokens,
            static_cast<int64_t>(expected.size() - turn.token_ids.size()));
}

TEST_F(EpisodeTest, ATurnThatWasCutEndsIt) {
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of(add_call(1), std::nullopt, FinishReason::kLength));
  const models::Completion whole = ended(episode);
  EXPECT_EQ(whole.finish_reason, FinishReason::kLength);
  EXPECT_EQ(record_of(whole)["calls"], 0);
  EXPECT_EQ(record_of(whole)["malformed"], 0);
  EXPECT_EQ(record_of(whole)["messages"].back()["content"], add_call(1));
}

TEST_F(EpisodeTest, TheLastTurnIsNotAnswered) {
  options.max_turns = 2;
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of(add_call(1)));
  episode.answered(answer_of("2"));
  episode.drawn(TalkingBackend::turn_of(add_call(2)));
  const models::Completion whole = ended(episode);
  EXPECT_EQ(whole.finish_reason, FinishReason::kLength);
  EXPECT_EQ(record_of(whole)["turns"], 2);
  EXPECT_EQ(record_of(whole)["calls"], 1);
}

TEST_F(EpisodeTest, TheEnvironmentMayEndIt) {
  Episode episode = open();
  const models::Completion turn = TalkingBackend::turn_of(add_call(1));
  episode.drawn(turn);
  EpisodeAnswer answer = answer_of("2", 1);
  answer.done = true;
  episode.answered(answer);
  const models::Completion whole = ended(episode);
  EXPECT_EQ(whole.finish_reason, FinishReason::kEos);
  EXPECT_EQ(whole.spans.size(), 2u) << "nobody reads the answer's tokens";
  EXPECT_EQ(record_of(whole)["messages"].back()["content"], "2");
  EXPECT_EQ(record_of(whole)["failed_calls"], 1);
}

// An answer may fill what an episode may have, and no more.
TEST_F(EpisodeTest, AnAnswerThatWouldPassTheTokensIsDropped) {
  const models::Completion turn = TalkingBackend::turn_of(add_call(1));
  const auto tokens = static_cast<int64_t>(turn.token_ids.size());
  const auto answer = static_cast<int64_t>(suffix_of("tool", "2").size());
  for (const int64_t room : {answer - 1, answer, answer + 1}) {
    options.max_tokens = tokens + room;
    Episode episode = open();
    EXPECT_EQ(episode.draw().max_new_tokens, std::min<int64_t>(50, tokens + room));
    episode.drawn(turn);
    episode.answered(answer_of("2"));
    if (room > answer) {
      EXPECT_EQ(episode.next(), Next::kDraw);
      EXPECT_EQ(episode.draw().max_new_tokens, 1);
      continue;
    }
    const models::Completion whole = ended(episode);
    EXPECT_EQ(whole.finish_reason, FinishReason::kLength);
    EXPECT_EQ(whole.spans.back().source,
              room < answer ? SpanSource::kModel : SpanSource::kEnvironment);
    EXPECT_EQ(record_of(whole)["messages"].size(), room < answer ? 2u : 3u);
    EXPECT_EQ(record_of(whole)["calls"], 1) << "it was asked all the same";
  }
}

TEST_F(EpisodeTest, TheModelsPositionsAreABound) {
  Episode first = open();
  const auto prompt = static_cast<int64_t>(first.ids().size());
  const models::Completion turn = TalkingBackend::turn_of(add_call(1));
  const auto answer = static_cast<int64_t>(suffix_of("tool", "2").size());
  setting.positions = prompt + static_cast<int64_t>(turn.token_ids.size()) + answer;
  Episode episode = open();
  episode.drawn(turn);
  episode.answered(answer_of("2"));
  EXPECT_EQ(ended(episode).spans.size(), 2u);

  setting.positions = prompt + 3;
  setting.draw.min_new_tokens = 7;
  EXPECT_EQ(open().draw().max_new_tokens, 3);
  EXPECT_EQ(open().draw().min_new_tokens, 3);

  // The row alone leaves no position; or it does, and the environment's tools take it.
  setting.environment = "tools/0";
  setting.positions = prompt;
  test::expect_error(ErrorCode::kMismatch, "environment tools/0", [&] { open(); });
  setting.positions = 3;
  EXPECT_EQ(test::code_of([&] { open(); }), ErrorCode::kInvalidArgument);
}

TEST_F(EpisodeTest, TheEnvironmentsWordsStandBehindTheRows) {
  const auto prompt = [&](const std::string& row, const OpenedEpisode& opened) {
    Episode episode = make(row);
    episode.opened(opened);
    return tool_tokenizer().decode(episode.ids(), false);
  };
  EXPECT_EQ(prompt(row_of("Add"), {.append = " 1 and 2"}),
            "<|im_start|>user\nAdd 1 and 2<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      prompt(row_of("Add"), {.messages = R"([{"role": "user", "content": "Now"}])", .append = "!"}),
      "<|im_start|>user\nAdd!<|im_end|>\n<|im_start|>user\nNow<|im_end|>\n"
      "<|im_start|>assistant\n");

  // Where content has parts, text is one more of them.
  Episode parts =
      make(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Add"}]}]})");
  parts.opened({.append = " 1"});
  parts.drawn(TalkingBackend::turn_of("Done."));
  EXPECT_EQ(record_of(ended(parts))["messages"][0]["content"][1]["text"], " 1");

  // An answer at the end of a row is what others learn from; the model does not see it.
  const std::string solved = R"({"messages": [{"role": "user", "content": "Add"},
                                              {"role": "assistant", "content": "3"}]})";
  EXPECT_EQ(prompt(solved, {}), "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>assistant\n");

  // Whoever gives the messages has left out what it wants to be left out.
  Episode given(
      setting, {.seed = 4, .row = row_of("Add"), .messages = R"([{"role": "user", "content": "Add"},
                                          {"role": "assistant", "content": "3"}])"});
  given.opened({});
  EXPECT_EQ(tool_tokenizer().decode(given.ids(), false),
            "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
            "<|im_start|>assistant\n");
}

// Rows of training have a bound, which the environment's part of the prompt may pass.
TEST_F(EpisodeTest, APromptThatNoRowHasRoomForCannotBeScored) {
  Episode fits = open();
  options.max_prompt_tokens = static_cast<int64_t>(fits.ids().size());
  EXPECT_EQ(open().next(), Next::kDraw) << "as long as it may be";

  options.max_prompt_tokens -= 1;
  Episode episode = open();
  const models::Completion whole = ended(episode, {.reward = 1});
  EXPECT_TRUE(whole.token_ids.empty());
  EXPECT_TRUE(whole.spans.empty());
  const std::string why = record_of(whole).at("unscorable");
  EXPECT_NE(why.find("data.max_length leaves it " + std::to_string(options.max_prompt_tokens)),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("environment.max_tokens"), std::string::npos) << why;
  EXPECT_EQ(record_of(whole).at("turns"), 0);
}

TEST_F(EpisodeTest, ItBeginsAnewAsOftenAsItMay) {
  options.restarts = 1;
  Episode episode = open();
  episode.drawn(TalkingBackend::turn_of(add_call(1)));
  episode.failed("the program ended");
  ASSERT_EQ(episode.next(), Next::kOpen);
  EXPECT_EQ(episode.restarts(), 1);
  EXPECT_EQ(episode.to_open(6).seed, 4u);

  // The second attempt knows nothing of the first.
  episode.opened({.tools = kAddTool});
  EXPECT_EQ(episode.ids(), open().ids());
  episode.drawn(TalkingBackend::turn_of(add_call(1)));
  EXPECT_EQ(Json::parse(episode.to_step(6).calls)[0]["id"], "c0");
  episode.failed("it ended again: \xff");
  ASSERT_EQ(episode.next(), Next::kEnd);
  const Json record = record_of(episode.take());
  EXPECT_EQ(record["unscorable"], "it ended again: \xEF\xBF\xBD") << "whatever bytes it said";
  EXPECT_TRUE(record["reward"].is_null());
  EXPECT_EQ(record["turns"], 1);
  EXPECT_EQ(record["restarts"], 1);
}

TEST_F(EpisodeTest, WhatNoEnvironmentMaySayIsRefused) {
  const auto corrupt = [](const std::function<void()>& call) {
    EXPECT_EQ(test::code_of(call), ErrorCode::kCorrupt);
  };
  const std::string deep(200, '[');
  for (const std::string& bad :
       {std::string("7"), std::string("["), std::string(R"([{"content": "x"}])"), deep}) {
    corrupt([&] { make().opened({.messages = bad}); });
    corrupt([&] {
      Episode episode = open();
      episode.drawn(TalkingBackend::turn_of(add_call(1)));
      episode.answered({.messages = bad});
    });
  }
  corrupt([&] { make().opened({.tools = "{}"}); });
  corrupt([&] { make(R"({"messages": [{"role": "user"}]})").opened({.append = "x"}); });
  corrupt([&] { make().opened({.tools = "[3]"}); });

  const auto answered = [&](const EpisodeAnswer& answer) {
    Episode episode = open();
    episode.drawn(TalkingBackend::turn_of(add_call(1)));
    episode.answered(answer);
  };
  corrupt([&] { answered({.messages = R"([{"role": "assistant", "content": "x"}])"}); });
  corrupt([&] { answered({}); });
  corrupt([&] { answered(answer_of("2", 2)); });
  const std::string tool = R"({"role": "tool", "content": "2"})",
                    user = R"({"role": "user", "content": "And?"})";
  corrupt([&] { answered({.messages = "[" + tool + "," + tool + "]"}); });
  corrupt([&] { answered({.messages = "[" + user + "]"}); });
  corrupt([&] { answered({.messages = "[" + user + "," + tool + "]"}); });
  EXPECT_NO_THROW(answered({.messages = "[" + tool + "," + user + "]"}));
  EXPECT_NO_THROW(answered({.messages = "[" + user + "]", .done = true}));
  corrupt([&] {
    setting.answers_turns = true;
    Episode episode = open();
    episode.drawn(TalkingBackend::turn_of("Hello."));
    episode.answered({.messages = "[" + tool + "]"});
  });
  setting.answers_turns = false;
  corrupt([&] { answered(answer_of("2", -1)); });

  const auto closed = [&](const ClosedEpisode& end) {
    Episode episode = open();
    episode.drawn(TalkingBackend::turn_of("Done."));
    episode.closed(end);
  };
  corrupt([&] { closed({.reward = std::numeric_limits<double>::quiet_NaN()}); });
  corrupt([&] { closed({.metrics = "[]"}); });
  corrupt([&] { closed({.metrics = R"({"a": "b"})"}); });
  EXPECT_NO_THROW(closed({.reward = -1, .metrics = R"({"a": 2.5})"}));
}

TEST_F(EpisodeTest, ARowHasMessages) {
  for (const char* row :
       {"", "[]", "{}", R"({"messages": []})", R"({"messages": "Add"})", R"({"messages": [{}]})",
        R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 3})"})
    EXPECT_EQ(test::code_of([&] { make(row); }), ErrorCode::kInvalidArgument) << row;
}

// An engine that is not ours may keep its numbers to itself.
TEST_F(EpisodeTest, LogProbabilitiesAreThoseOfAllTurnsOrNone) {
  Episode episode = open();
  models::Completion turn = TalkingBackend::turn_of(add_call(1));
  turn.sampling_logps.clear();
  episode.drawn(turn);
  episode.answered(answer_of("2"));
  episode.drawn(TalkingBackend::turn_of("Done."));
  const models::Completion whole = ended(episode);
  EXPECT_EQ(whole.logps.size(), whole.token_ids.size());
  EXPECT_TRUE(whole.sampling_logps.empty());
}

TEST(EpisodeOptions, AreChecked) {
  const auto refused = [](const EpisodeOptions& options, const char* field) {
    test::expect_refused(field, [&] { options.validate(); });
  };
  refused({.max_turns = 0}, "max_turns");
  refused({.max_tokens = 0}, "max_tokens");
  refused({.max_prompt_tokens = -1}, "max_prompt_tokens");
  refused({.timeout = Duration(0)}, "timeout");
  refused({.timeout = Duration(100), .episode_timeout = Duration(99)}, "episode_timeout");
  refused({.restarts = -1}, "restarts");
  EXPECT_NO_THROW(EpisodeOptions{}.validate());
}

}  // namespace
}  // namespace retort::roles
