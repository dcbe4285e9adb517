// Qwen's templates. A thought that is only printed behind the last question is printed in every
// turn for training, so that the beginning of a conversation stays what it was.
#include "models/text/detail/template_edits.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kQwenHeader = R"({{- '<|im_start|>' + message.role + '\n' }})";
constexpr std::string_view kQwenTool = R"(    {%- elif message.role == "tool" %})";

// The condition becomes one that always holds; what stood in its `else` is never reached.
TemplateEdit always_thinks(std::string_view condition) {
  return replace("{%- if " + std::string(condition) + " %}",
                 std::string(kQwenHeader) + std::string(kOpenMark) + "{%- if true %}");
}

TemplateEdit thought_without_header() {
  return replace(R"({{- '<|im_start|>' + message.role + '\n<think>\n' +)", R"({{- '<think>\n' +)");
}

KnownTemplate qwen_thinking(std::string_view name, std::string_view sha256,
                            std::string_view condition) {
  return {
      name, sha256, {always_thinks(condition), thought_without_header(), close_before(kQwenTool)}};
}

}  // namespace

std::vector<KnownTemplate> known_qwen_templates() {
  const std::string_view behind_question = "loop.index0 > ns.last_query_index";

  // Alone among them it also asks whether the answer is the last one.
  KnownTemplate qwen3 = qwen_thinking(
      "qwen3", "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", behind_question);
  qwen3.edits.push_back(
      replace("{%- if loop.last or (not loop.last and reasoning_content) %}", "{%- if true %}"));

  return {
      qwen3,
      qwen_thinking("qwen3_5_nothink",
                    "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80",
                    behind_question),
      qwen_thinking("qwen3_5_think",
                    "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",
                    behind_question),
      qwen_thinking("qwen3_6", "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",
                    "(preserve_thinking is defined and preserve_thinking is true) or "
                    "(loop.index0 > ns.last_query_index)"),
      qwen_thinking("qwen3_8", "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041",
                    "preserve_thinking is undefined or preserve_thinking is true or "
                    "loop.index0 > ns.last_query_index"),

      // These write no thoughts: all that stands behind the header of an answer is marked.
      {"qwen3_instruct_2507",
       "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",
       {replace(R"({{- '<|im_start|>' + message.role + '\n' + content }})",
                std::string(kQwenHeader) + std::string(kOpenMark) + "{{- content }}"),
        close_before(kQwenTool)}},
      {"qwen3_vl",
       "3636d0f0bd6bef02654cdffdc447b79cb2cef8ab02cc75267345946291a489e4",
       {open_behind("    {%- elif message.role == \"assistant\" %}\n        " +
                    std::string(kQwenHeader)),
        close_before(kQwenTool)}},

      // An answer without calls has its own branch, together with the other roles.
      {"qwen2_5",
       "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
       {replace(R"( or (message.role == "assistant" and not message.tool_calls) %})", " %}"),
        replace("{{- '<|im_start|>' + message.role }}\n        {%- if message.content %}",
                "{{- '<|im_start|>' + message.role }}" + std::string(kOpenMark) +
                    "{%- if message.content or not message.tool_calls %}"),
        close_before(kQwenTool)}},
  };
}

}  // namespace retort::models::detail
