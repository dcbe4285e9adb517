// Nemotron 3's templates, which differ in what stands around the same answers.
#include "models/text/detail/template_edits.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kNemotronHeader = R"({{- '<|im_start|>assistant\n' }})";

TemplateEdit answer_in_marks(std::string_view printed, std::string_view answer) {
  return replace("{{- '<|im_start|>assistant\\n" + std::string(printed) + " }}",
                 std::string(kNemotronHeader) + marked(answer));
}

KnownTemplate known_nemotron(std::string_view name, std::string_view sha256) {
  const std::string whole = R"((content | default('', true) | string | trim) ~ '<|im_end|>\n')";
  const std::string kept = R"(c ~ '<|im_end|>\n')";
  return {
      name,
      sha256,
      {// with calls
       open_between(std::string(kNemotronHeader) + "\n", "                {%- set include_content"),
       replace("<|im_end|>\\n' }}\n        {%- else %}\n",
               "<|im_end|>\\n' }}\n" + std::string(kCloseMark) + "\n        {%- else %}\n"),
       // without
       answer_in_marks("' ~ " + whole, whole), answer_in_marks("' ~ " + kept, kept),
       answer_in_marks(R"(<|im_end|>\n')", R"('<|im_end|>\n')")}};
}

}  // namespace

std::vector<KnownTemplate> known_nemotron_templates() {
  return {
      known_nemotron("nemotron_3_nano",
                     "ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862"),
      known_nemotron("nemotron_3_super",
                     "575fb74f54ed264df9047d0ecce3c98938aae953fb4f50356675706264cbb68a"),
      known_nemotron("nemotron_3_ultra",
                     "82753bef5cedc4932c1ed509b5c9a12be680fd86d1adb65bc3f7398d11c8eebc"),
      known_nemotron("nemotron_3_5_lightning",
                     "58933db77d3099b4f78c55a38347a72e1ea05b97d6bd8f38775303dc0194e0a9"),
  };
}

}  // namespace retort::models::detail
