// DeepSeek's templates. Their turns have no header but a token, which the marks hold, too.
#include "models/text/detail/template_edits.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kEndOfCalls =
    "{{'<\uff5ctool\u2581calls\u2581end\uff5c><\uff5cend\u2581of\u2581sentence\uff5c>'}}";

// Opens the mark of an answer that stands behind the outputs of tools.
TemplateEdit open_behind_outputs() {
  return open_before("{{'<\uff5ctool\u2581outputs\u2581end\uff5c>' + message['content']");
}
TemplateEdit close_behind_outputs() {
  const std::string answered = "{%- set ns.is_tool = false -%}";
  return replace(answered + "{%- else %}", answered + std::string(kCloseMark) + "{%- else %}");
}
TemplateEdit close_answer() {
  return close_behind("' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>'}}");
}

}  // namespace

std::vector<KnownTemplate> known_deepseek_templates() {
  return {
      // A thought within an answer is cut off by the published one and kept for training.
      {"deepseek_r1_distill",
       "56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f",
       {open_before("{%- for tool in message['tool_calls']%}"),
        close_behind(std::string(kEndOfCalls) + "{%- endif %}{%- endfor %}"), open_behind_outputs(),
        close_behind_outputs(),
        replace("{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}"
                "{% endif %}",
                kOpenMark),
        close_answer()}},
      // The published one takes arguments as text alone.
      {"deepseekv3",
       "563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64",
       {open_before("{%- for tool in message['tool_calls'] %}"), close_behind(kEndOfCalls),
        replace("tool['function']['arguments'] +", "tool['function']['arguments'] | tojson +", 3),
        open_behind_outputs(), close_behind_outputs(),
        open_before("{{'<\uff5cAssistant\uff5c>' + content"), close_answer()}},
  };
}

}  // namespace retort::models::detail
