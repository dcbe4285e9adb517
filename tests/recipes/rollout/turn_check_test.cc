// What is shown of two turns before a run.
#include <gtest/gtest.h>

#include <string>

#include "recipes/rollout/turn_check.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

// Each message ends with <|end|>, calls of tools included.
constexpr const char* kTools =
    R"({% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>)"
    R"({{ m.content or '' }})"
    R"({% for call in m.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", )"
    R"("arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>)"
    R"({% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %})";

TEST(TurnCheck, TurnsAreJoinedByIds) {
  const test::TemporaryFolder folder;
  const models::Tokenizer tokenizer = test::word_tokenizer(folder.path());
  const std::string text = describe_turns(test::chat_template(kTools), tokenizer);
  // <|user|>, the answer (no word of this tokenizer), <|end|>, <|assistant|>
  EXPECT_NE(text.find("a turn ends with 6 \"<|end|>\""), std::string::npos) << text;
  EXPECT_NE(text.find("ids 4 0 6 5, mask 0 0 0 0: \"<|user|>"), std::string::npos) << text;
}

TEST(TurnCheck, ATemplateThatEndsNoTurnIsRefused) {
  const test::TemporaryFolder folder;
  const models::Tokenizer tokenizer = test::word_tokenizer(folder.path());
  EXPECT_EQ(test::code_of([&] {
              describe_turns(test::chat_template("{% for m in messages %}{{ m.role }}: "
                                                 "{{ m.content or m.tool_calls }} {% endfor %}"),
                             tokenizer);
            }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort::recipes
