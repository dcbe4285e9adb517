// Chat templates that come with the program, by their names.
#pragma once

#include <string>
#include <vector>

namespace retort::models {

// What is used in place of the template of a model's folder.
struct TemplateSource {
  std::string origin;  // its file or its name, for messages
  std::string text;
};

// chatml, qwen3_training
std::vector<std::string> template_names();

// `file_or_name`: a file with a Jinja template, with or without generation marks, or one of
// template_names(), which a file of that name does not hide. kInvalidArgument that lists the names
// where it is neither.
// - chatml: `<|im_start|>role\n...<|im_end|>\n` for every role; an answer is marked up to its end
//   token; tools and their calls are refused
// - qwen3_training: what TRL 1.16 trains Qwen3 with: every answer has a thought, if an empty one
TemplateSource find_template(const std::string& file_or_name);

}  // namespace retort::models
