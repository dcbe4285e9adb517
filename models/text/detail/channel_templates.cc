// Templates whose answers are messages of several channels or recipients.
#include "models/text/detail/template_edits.h"

namespace retort::models::detail {

std::vector<KnownTemplate> known_channel_templates() {
  return {
      {"gptoss",
       "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
       {open_before(R"(        {%- if "tool_calls" in message %})"),
        close_before("    {%- elif message.role == 'tool' -%}")}},
      {"muse_glimmer",
       "cfc67e5f349f37690dfd31ed1f18bc4442a9dd32fe39a648f993cb4eb3cae678",
       {open_behind("    {%- elif role == 'assistant' -%}\n"),
        close_behind("{{- ('<|eot|>' if end_turn else '<|eom|>') -}}\n        {%- endif -%}\n")}},
      {"lfm2_v2",
       "5504d163d879bfb6fd4135b7fa3d56768b2e69dd718338f7b146750289f46ab0",
       {open_before("\t\t{%- if content and content != \"null\" -%}"),
        replace("\t\t{{- \"<|im_end|>\\n\" -}}\n",
                R"({{- "<|im_end|>\n" }})" + std::string(kCloseMark) +
                    R"({%- elif message["role"] == "assistant" -%})" +
                    marked(R"(content + "<|im_end|>\n")"))}},
  };
}

}  // namespace retort::models::detail
