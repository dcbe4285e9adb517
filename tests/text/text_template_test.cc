// Texts with places to be filled in: what stands there, and what is an error.
#include "models/text/text_template.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::models {
namespace {

std::string rendered(const std::string& source, const std::string& variables) {
  return TextTemplate(source, {"prompt", "fields", "num_tokens", "list", "reference"},
                      "judge.jinja")
      .render(variables);
}

TEST(TextTemplate, FillsNamedValues) {
  EXPECT_EQ(rendered("{{ prompt }} -> {{ fields.level }}, {{ num_tokens + 1 }}",
                     R"({"prompt": "a \"b\"", "fields": {"level": "easy"}, "num_tokens": 3})"),
            "a \"b\" -> easy, 4");
  EXPECT_EQ(rendered("{% for x in list %}{{ x }};{% endfor %}", R"({"list": [1, 2]})"), "1;2;");
  // Values are text, whatever they hold.
  EXPECT_EQ(rendered("{{ prompt }}", R"({"prompt": "{{ reference }} <b>"})"),
            "{{ reference }} <b>");
}

// A name that is written wrong must not become an empty place.
TEST(TextTemplate, NameThatIsNoneIsAnError) {
  const auto refused = [](const std::string& source) {
    return test::message_of([&] { rendered(source, R"({"prompt": "a", "fields": {}})"); });
  };
  EXPECT_NE(refused("first line\n{{ reference }}").find("undefined value"), std::string::npos);
  EXPECT_NE(refused("first line\n{{ reference }}").find("judge.jinja"), std::string::npos);
  EXPECT_NE(refused("first line\n{{ reference }}").find(":2"), std::string::npos);
  EXPECT_NE(refused("{{ fields.level }}").find("undefined value"), std::string::npos);
  EXPECT_NE(refused("{% for x in list %}{% endfor %}").find("undefined value"), std::string::npos);
  EXPECT_EQ(rendered("{% if reference %}{{ reference }}{% else %}none{% endif %}", "{}"), "none");
}

// Found when the template is read, also where nothing would be printed.
TEST(TextTemplate, UnknownNameIsRefusedBeforeItIsUsed) {
  for (const std::string source :
       {"{{ promt }}", "{% if refrence %}x{% endif %}", "{% if promt == 'a' %}x{% endif %}"}) {
    const std::string message = test::message_of([&] {
      TextTemplate(source, {"prompt", "reference"}, "judge.jinja");
    });
    EXPECT_NE(message.find("may use prompt, reference"), std::string::npos) << message;
  }
  EXPECT_NO_THROW(
      TextTemplate("{% set n = namespace(x=1) %}{% for i in range(3) %}{{ i }}"
                   "{{ prompt|trim }}{{ loop.index }}{{ n.x }}{% endfor %}",
                   {"prompt"}, "judge.jinja"));
}

TEST(TextTemplate, WrongTemplateIsRefusedWithItsLine) {
  const std::string message =
      test::message_of([] { TextTemplate("a\n{% if %}", {}, "judge.jinja"); });
  EXPECT_NE(message.find("judge.jinja"), std::string::npos) << message;
  EXPECT_NE(message.find(":2"), std::string::npos) << message;
}

}  // namespace
}  // namespace retort::models
