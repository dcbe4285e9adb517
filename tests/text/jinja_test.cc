// Templates against Jinja2 in transformers' environment, text by text (make_jinja_goldens.py), and
// what ends those that have no end.
#include <cstdio>
#include <cstdlib>

#include "models/text/chat_template.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

constexpr const char* kGreeting = R"([{"role": "user", "content": "hi"}])";

std::string jinja_text(const std::string& source, const std::string& variables) {
  return ChatTemplate::from_source(source, "", "")
      .with({.day = "2026-11-23"})
      .render(kGreeting, false, variables)
      .text;
}

// What Jinja2 refuses is refused; of the rest what is not supported is refused by name. With
// RETORT_JINJA_ROWS the rows of that file are compared (fuzz_jinja.py).
TEST(Jinja, RendersAsJinja2) {
  const char* random_rows = std::getenv("RETORT_JINJA_ROWS");
  const Json file = read_json(random_rows ? random_rows : golden("jinja.json"));
  int64_t equal = 0, refused = 0, unsupported = 0;
  for (const Json& row : file["rows"]) {
    const std::string variables = file["contexts"][row[1].get<size_t>()].dump();
    SCOPED_TRACE(row.dump());
    if (row[2].is_null()) {
      test::message_of([&] { jinja_text(row[0], variables); });
      ++refused;
      continue;
    }

    try {
      EXPECT_EQ(jinja_text(row[0], variables), row[2].get<std::string>());
      ++equal;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("not supported"), std::string::npos) << error.what();
      ++unsupported;
    }
  }

  if (random_rows) {
    std::printf("%lld texts as Jinja2's, %lld refused by both, %lld not supported\n",
                static_cast<long long>(equal), static_cast<long long>(refused),
                static_cast<long long>(unsupported));
    return;
  }
  // The goldens have all three kinds, and the last is rare.
  EXPECT_GT(equal, 450);
  EXPECT_GT(refused, 400);
  EXPECT_LT(unsupported, 30);
}

TEST(Jinja, ListsPrintAsPythonPrintsThem) {
  const std::string parts = R"({"c": [{"type": "text", "text": "It's \u201cso\u201d\n"}, true]})";
  const std::string expected = "[{'type': 'text', 'text': \"It's \u201cso\u201d\\n\"}, True]";
  EXPECT_EQ(jinja_text("{{ c }}", parts), expected);
  EXPECT_EQ(jinja_text("{{ '<' ~ c ~ '>' }}", parts), "<" + expected + ">");
  EXPECT_EQ(jinja_text("{{ c|trim }}", parts), expected);
  EXPECT_EQ(jinja_text("{{ (1,) }}{{ d }}", R"({"d": {"a": null}})"), "(1,){'a': None}");
  const auto refused = test::message_of([&] { jinja_text("{{ 'a' + c }}", parts); });
  EXPECT_NE(refused.find("can only concatenate str (not \"list\") to str"), std::string::npos)
      << refused;
}

TEST(Jinja, WhatIsNotSupportedIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% include 'other' %}", "{% include %}"},
      {"{{ 10 ** 40 }}", "127 bits"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}{{ f(1) }}", "'varargs'"},
      {"{{ 'a'|pprint }}", "'pprint'"},
      {"{{ 'a'.encode() }}", "'encode'"},
  };
  for (const auto& [source, name] : cases) {
    const auto message = test::message_of([&] { jinja_text(source, "{}"); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("not supported"), std::string::npos) << message;
  }
}

TEST(Jinja, AnErrorNamesItsLine) {
  for (const char* source : {"a\n{% if b -%}\n\n{{ 1 + }}{% endif %}", "a\n\n\n{{ 1 + none }}",
                             "{#\n-#}\n\n{{ b.c.d }}", "a\n{%- set x = 1 %}\n\n{{ x|nope }}"}) {
    const auto message = test::message_of([&] { jinja_text(source, R"({"b": {"e": 1}})"); });
    EXPECT_NE(message.find(":4"), std::string::npos) << source << ": " << message;
  }
}

// Steps, texts and lists are counted, so that a template is refused alike on every machine, before
// it takes seconds or a GiB (models/text/rust/src/budget.rs).
TEST(Jinja, WhatHasNoEndIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
       "more than 10000000 steps"},
      {"{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
       "more than 10000000 steps"},
      {"{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}"
       "{% endfor %}",
       "more than 256 MiB of text and lists"},
      {"{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}"
       "{% endfor %}",
       "more than 256 MiB of text and lists"},
      {"{% set n = namespace(l=['b' * 999]) %}{% for i in range(15) %}{% set n.l = [n.l, n.l] %}"
       "{% endfor %}{{ n.l }}",
       "a text of more than 16 MiB"},
      {"{{ ('a' * 9999999)|replace('a', 'aaaaaaaaaa') }}", "a text of more than 64 MiB"},
      {"{% set s = 'a' * 9999999 %}{% for i in range(99) %}{{ s }}{% endfor %}",
       "more than 256 MiB of text and lists"},
      {"{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}",
       "into each other, more than 200 deep"},
  };
  for (const auto& [source, reason] : cases) {
    const auto message = test::message_of([&] { jinja_text(source, "{}"); });
    EXPECT_NE(message.find(reason), std::string::npos) << source << ": " << message;
  }
  EXPECT_EQ(jinja_text("{% for i in range(99999) %}{{ i % 10 }}{% endfor %}", "{}").size(), 99999u);
}

}  // namespace
}  // namespace retort::models
