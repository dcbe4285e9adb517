// Decodes: a model's chat template, which is parsed and renders a conversation within its limits
//   (docs/decisions.md names them).
// Holds: what it marks as said by the assistant lies in what it renders, and the same conversation
//   is rendered the same.
#include "models/text/chat_template.h"

#include "tests/fuzz/target_list.h"

namespace retort::fuzz::chat_template {
namespace {

constexpr const char* kMessages =
    R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4\n", "tool_calls": [{"type": "function", "function":
         {"name": "add", "arguments": {"a": 2, "b": [1.5, null, true, "\u00e9"]}}}]}])";

bool decode(std::string_view bytes) {
  const auto settings = models::TemplateSettings{.variables_json = "{}", .day = "2026-11-26"};
  const auto parsed =
      models::ChatTemplate::from_source(std::string(bytes), "<s>", "</s>").with(settings);
  const auto rendered = parsed.render(kMessages, /*add_generation_prompt=*/true);
  for (const auto& [first, last] : rendered.generation_spans)
    expect(first <= last && last <= rendered.text.size(), "a mark outside of the text");
  const auto again = parsed.render(kMessages, /*add_generation_prompt=*/true);
  expect(again.text == rendered.text, "the same conversation is another text");
  return true;
}

std::vector<Seed> seeds() {
  return {
      {"chatml",
       "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>\n"
       "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
      {"marks",
       "{{ bos_token }}{%- for m in messages if m.role != 'system' -%}[{{ loop.index }}]"
       "{%- if m.role == 'assistant' -%}{% generation %}{{ m.content ~ eos_token }}"
       "{% endgeneration %}{%- endif -%}{%- endfor -%}"},
      {"tools",
       "{% set ns = namespace(n=0) %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
       "{% set ns.n = ns.n + 1 %}{{ c.function.arguments | tojson }}{{ '%03d' % ns.n }}"
       "{% endfor %}{% endfor %}{% macro a(x, y=2) %}{{ x ** y }}{% endmacro %}{{ a(3) }}"
       "{{ messages[-1].content.split('\n') | join(',') }}{{ range(3) | list }}"},
  };
}

}  // namespace

Target target() { return {"chat_template", decode, seeds}; }

}  // namespace retort::fuzz::chat_template
