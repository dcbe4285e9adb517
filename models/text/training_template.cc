#include "models/text/training_template.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "models/text/detail/template_edits.h"

namespace retort::models {
namespace {

// Turns line ends into newlines, as Jinja reads them.
std::string with_newlines(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      plain += text[i];
    } else {
      plain += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    }
  }
  return plain;
}

std::string edited(std::string text, const detail::KnownTemplate& known) {
  for (const detail::TemplateEdit& edit : known.edits) {
    // An edit must fit exactly as often as it says: a template that is known by its hash cannot
    // have more or fewer places.
    size_t at = 0;
    for (size_t i = 0; i < edit.times; ++i) {
      at = text.find(edit.find, at);
      RETORT_CHECK(at != std::string::npos) << known.name << ": " << edit.find;
      text.replace(at, edit.find.size(), edit.with);
      at += edit.with.size();
    }
    RETORT_CHECK(text.find(edit.find, at) == std::string::npos) << known.name << ": " << edit.find;
  }
  return text;
}

}  // namespace

std::optional<TrainingTemplate> training_template(std::string_view published) {
  std::string text = with_newlines(published);
  const std::string hash = sha256_hex(text);
  for (const auto family : {detail::known_qwen_templates, detail::known_nemotron_templates,
                            detail::known_deepseek_templates, detail::known_glm_templates,
                            detail::known_channel_templates, detail::known_plain_templates})
    for (const detail::KnownTemplate& known : family())
      if (known.sha256 == hash)
        return TrainingTemplate{std::string(known.name), edited(std::move(text), known)};
  return std::nullopt;
}

}  // namespace retort::models
