// Templates that print every role by one expression: it is told apart by role.
#include "models/text/detail/template_edits.h"

namespace retort::models::detail {
namespace {

// `expression` in marks where `condition` holds, else as it was.
std::string marked_if(std::string_view condition, std::string_view expression) {
  return "{% if " + std::string(condition) + " %}" + marked(expression) + "{% else %}{{ " +
         std::string(expression) + " }}{% endif %}";
}

// The end of the text behind a last answer is of the answer.
KnownTemplate known_phi(std::string_view name, std::string_view sha256) {
  const std::string header = "'<|assistant|>\n'";
  const std::string answer = "message['content'] + '<|end|>\n'";
  return {name,
          sha256,
          {replace("'<|assistant|>\n' + " + answer + "}}",
                   header + "}}" + std::string(kOpenMark) + "{{" + answer +
                       "}}{% if loop.last and not add_generation_prompt %}{{ eos_token }}"
                       "{% endif %}" +
                       std::string(kCloseMark)),
           replace("{% else %}{{ eos_token }}",
                   "{% elif messages[-1]['role'] != 'assistant' %}{{ eos_token }}")}};
}

KnownTemplate known_llama3() {
  const std::string answer = "message['content'] | trim + '<|eot_id|>'";
  return {"llama3",
          "ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122",
          {replace("'+ " + answer + " %}", "' %}"),
           replace("{{ content }}",
                   "{{ content }}" + marked_if("message['role'] == 'assistant'", answer))}};
}

KnownTemplate known_gemma() {
  const std::string answer = "message['content'] | trim + '<end_of_turn>\n'";
  return {"gemma",
          "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",
          {replace("' + " + answer + " }}", "' }}" + marked_if("role == 'model'", answer))}};
}

// Several statements print its answers.
KnownTemplate known_gemma3() {
  const std::string prefix = "(first_user_prefix if loop.first else \"\") }}\n    ";
  const std::string end = "    {{ '<end_of_turn>\n' }}\n";
  return {"gemma3",
          "7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4",
          {replace(prefix, prefix + "{%- set said -%}"),
           replace(end, end + "{%- endset -%}" + marked_if("role == 'model'", "said"))}};
}

KnownTemplate known_cohere() {
  const std::string header = "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'";
  const std::string answer = "content.strip() + '<|END_OF_TURN_TOKEN|>'";
  return {"cohere",
          "90c33aee14aa2a226127516d48ee9184c9b90745d4a04c484621ec2e82fb712c",
          {replace(header + "  + " + answer + " }}", header + " }}" + marked(answer))}};
}

KnownTemplate known_cohere2() {
  const std::string header = "<|START_RESPONSE|>";
  const std::string answer = "{{ message['content'] }}<|END_RESPONSE|>";
  const std::string end = "<|END_OF_TURN_TOKEN|>";
  return {"cohere2",
          "2147c474f41b522b7296f74692b9f31e45f49a31465960576a9d321339c5915a",
          {replace(header + answer,
                   header + std::string(kOpenMark) + answer + end + std::string(kCloseMark)),
           replace("{% endif %}" + end + "{% endfor %}",
                   "{% endif %}{% if role == 'user' or role == 'system' %}" + end +
                       "{% endif %}{% endfor %}")}};
}

KnownTemplate known_lfm2() {
  const std::string answer = R"(content + "<|im_end|>\n")";
  return {"lfm2",
          "cef187400d62a59507aab3a642ea9a8d2a2ef263562bc3430560e116945273cf",
          {replace("\t{{- " + answer + " -}}",
                   marked_if(R"(message["role"] == "assistant")", answer))}};
}

}  // namespace

std::vector<KnownTemplate> known_plain_templates() {
  return {known_phi("phi3", "dcaee66df77bfbb789ec541fe713218da30225a526f1db97138fc39ee6dc56aa"),
          known_phi("phi3_5", "78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90"),
          known_llama3(),
          known_gemma(),
          known_gemma3(),
          known_cohere(),
          known_cohere2(),
          known_lfm2()};
}

}  // namespace retort::models::detail
