#include "models/text/named_templates.h"

#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/options.h"

namespace retort::models {
namespace {

constexpr std::string_view kChatMl = R"({%- if tools %}
    {{- raise_exception('chatml has no place for tools') }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- raise_exception('chatml has no place for tool calls') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- set said %}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for part in (message.content or []) if part.type == 'text' %}
                {{- part.text }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>' }}
    {%- endset %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- said }}{% endgeneration %}
    {%- else %}
        {{- said }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

constexpr std::string_view kQwen3Training = R"({%- if messages[0].role == 'system' %}
{%- set system = messages[0].content %}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if system is defined %}
        {{- system + '\n\n' }}
    {%- endif %}
    {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\n\nFor each function call, return a json object with function name and ' }}
    {{- 'arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": ' }}
    {{- '<function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif system is defined %}
    {{- '<|im_start|>system\n' + system + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set opened = content.split('</think>')[0].rstrip('\n') %}
            {%- set thought = opened.split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
        {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\n' if content or not loop.first }}
            {{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
)";

struct NamedTemplate {
  std::string_view name, text;
};
constexpr NamedTemplate kNamedTemplates[] = {{"chatml", kChatMl},
                                             {"qwen3_training", kQwen3Training}};

}  // namespace

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const NamedTemplate& named : kNamedTemplates)
    names.emplace_back(named.name);
  return names;
}

TemplateSource find_template(const std::string& file_or_name) {
  // A name goes before a file of the same name.
  std::string known;
  for (const NamedTemplate& named : kNamedTemplates) {
    if (named.name == file_or_name) return {file_or_name, std::string(named.text)};
    known += (known.empty() ? "" : ", ") + std::string(named.name);
  }
  if (std::filesystem::is_regular_file(file_or_name))
    return {file_or_name, read_file(file_or_name)};
  throw Error(ErrorCode::kInvalidArgument, "no chat template is named '" + file_or_name +
                                               "', and there is no such file; "
                                               "known names: " +
                                               known);
}

}  // namespace retort::models
