// GLM's template, whose turns end with the token that begins the next one: for training that token
// is of the answer.
#include "models/text/detail/template_edits.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kBehindAnswer = "messages[loop.index0 - 1].role != 'assistant'";

// A role's own token, where no answer in front has printed it.
TemplateEdit role_token(std::string_view before, std::string_view token) {
  const std::string content = "visible_text(m.content)";
  return replace(std::string(before) + std::string(token) + "\n{{ " + content + " }}",
                 std::string(before) + "{%- if loop.first or " + std::string(kBehindAnswer) +
                     " -%}" + std::string(token) + "{%- endif -%}{{ '\\n' + " + content + " }}");
}

}  // namespace

std::vector<KnownTemplate> known_glm_templates() {
  const std::string end_of_calls = "</tool_call>{% endfor %}";
  return {
      {"glm4moe",
       "44f815868bf02fa458dd2f741a338046f4bf45f398eb6d067766726b9d96cce3",
       {role_token("-%}", "<|user|>"), role_token("", "<|system|>"),
        open_before("{%- if loop.index0 > ns.last_user_index and reasoning_content -%}"),
        replace(end_of_calls + "\n{% endif %}",
                end_of_calls +
                    "<|observation|>\n"
                    "{%- elif not loop.last and messages[loop.index0 + 1].role == 'system' -%}"
                    "{{- '<|system|>' }}{%- else -%}{{- '<|user|>' }}{%- endif -%}" +
                    std::string(kCloseMark)),
        replace("{%- if loop.first or (messages[loop.index0 - 1].role != \"tool\") %}\n"
                "    {{- '<|observation|>' }}\n"
                "{%- endif %}\n",
                ""),
        replace("<|observation|>{% for tr in m.content %}",
                "{{- '<|observation|>' if loop.first or " + std::string(kBehindAnswer) +
                    " }}{% for tr in m.content %}")}},
  };
}

}  // namespace retort::models::detail
