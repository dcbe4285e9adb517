// Small changes to the text of a template that is known. Private to models/text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace retort::models::detail {

inline constexpr std::string_view kOpenMark = "{%- generation %}";
inline constexpr std::string_view kCloseMark = "{%- endgeneration %}";

// `find` stands `times` times in the template, and `with` comes in its place.
struct TemplateEdit {
  std::string find;
  std::string with;
  size_t times = 1;
};

inline TemplateEdit replace(std::string_view find, std::string_view with, size_t times = 1) {
  return {std::string(find), std::string(with), times};
}
inline TemplateEdit open_before(std::string_view place) {
  return {std::string(place), std::string(kOpenMark) + std::string(place)};
}
inline TemplateEdit open_behind(std::string_view place) {
  return {std::string(place), std::string(place) + std::string(kOpenMark)};
}
inline TemplateEdit close_before(std::string_view place) {
  return {std::string(place), std::string(kCloseMark) + std::string(place)};
}
inline TemplateEdit close_behind(std::string_view place) {
  return {std::string(place), std::string(place) + std::string(kCloseMark)};
}
// `head` and `rest` stand side by side: what they print is the header and the answer.
inline TemplateEdit open_between(std::string_view head, std::string_view rest) {
  const std::string begin(head);
  const std::string end(rest);
  return {begin + end, begin + std::string(kOpenMark) + end};
}
// An expression in marks.
inline std::string marked(std::string_view expression) {
  return std::string(kOpenMark) + "{{- " + std::string(expression) + " }}" +
         std::string(kCloseMark);
}

// A published template and what is changed in it for training.
struct KnownTemplate {
  std::string_view name;
  std::string_view sha256;  // of its text, line ends as "\n"
  std::vector<TemplateEdit> edits;
};

// By family; the names are TRL's.
std::vector<KnownTemplate> known_qwen_templates();
std::vector<KnownTemplate> known_nemotron_templates();
std::vector<KnownTemplate> known_deepseek_templates();
std::vector<KnownTemplate> known_glm_templates();
std::vector<KnownTemplate> known_channel_templates();
std::vector<KnownTemplate> known_plain_templates();

}  // namespace retort::models::detail
