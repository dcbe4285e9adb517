#include "models/text/chat_template.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json_text.h"
#include "models/text/detail/rust_call.h"
#include "models/text/training_template.h"

namespace retort::models {
using detail::borrow;
using detail::borrow_optional;
using detail::call_rust;
using detail::RustString;

struct ChatTemplate::Impl {
  RtTemplate* handle = nullptr;  // null: the folder has no template
  std::string source;
  std::string origin;  // the folder, file or name, for messages; empty for a template from source
  std::string special_tokens = "{}";  // by their names
  TemplateSettings settings;
  std::string known_as;                  // the name of a published template with a variant
  std::shared_ptr<const Impl> training;  // its variant; null: there is none

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { rt_template_free(handle); }
  void open();
};

namespace {

class RustSpans : public detail::RustOwned<RtSpans, rt_spans_free> {
 public:
  std::vector<std::pair<size_t, size_t>> pairs() const {
    std::vector<std::pair<size_t, size_t>> pairs(raw_.len);
    for (size_t i = 0; i < raw_.len; ++i)
      pairs[i] = {raw_.data[2 * i], raw_.data[2 * i + 1]};
    return pairs;
  }
};

std::string chat_context(const std::string& origin) {
  return origin.empty() ? "chat template" : "chat template of " + origin;
}

// The tokens from the first that ends after `begin` to the last that starts before `end`: a token
// that straddles a border counts as the assistant's, as in transformers.
std::pair<size_t, size_t> tokens_of(const Tokenizer::Encoding& encoding,
                                    std::pair<size_t, size_t> span) {
  const auto [begin, end] = span;
  if (begin == end) return {0, 0};
  size_t first = 0;
  while (first < encoding.offsets.size() && encoding.offsets[first].second <= begin)
    ++first;
  size_t last = first;
  while (last < encoding.offsets.size() && encoding.offsets[last].first < end)
    ++last;
  return {first, last};
}

// `own` in front of the values of the same names in `others`.
std::string merged(const std::string& others, const std::string& own) {
  nlohmann::ordered_json all = nlohmann::ordered_json::parse(others);
  const nlohmann::ordered_json more = nlohmann::ordered_json::parse(own, nullptr, false);
  if (!more.is_object())
    throw Error(ErrorCode::kInvalidArgument,
                "the variables of a chat template are " + own + "; expected a JSON object");
  all.update(more);
  return all.dump();
}

}  // namespace

void ChatTemplate::Impl::open() {
  const std::string variables = merged(special_tokens, settings.variables_json);
  call_rust(chat_context(origin), rt_template_open, borrow(source), borrow(variables),
            borrow(settings.day), &handle);
  if (rt_template_has_marks(handle)) return;
  std::optional<TrainingTemplate> known = training_template(source);
  if (!known) return;
  auto variant = std::make_shared<Impl>();
  variant->source = std::move(known->source);
  variant->origin = origin;
  variant->special_tokens = special_tokens;
  variant->settings = settings;
  variant->open();
  training = std::move(variant);
  known_as = std::move(known->name);
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& folder) {
  const auto files = detail::TextFiles::read(folder);
  if (files.chat_template) return load(folder, {folder.string(), *files.chat_template});
  auto impl = std::make_shared<Impl>();
  impl->origin = folder.string();
  ChatTemplate chat;
  chat.impl_ = std::move(impl);
  return chat;
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& folder,
                                const TemplateSource& instead) {
  const auto files = detail::TextFiles::read(folder);
  auto impl = std::make_shared<Impl>();
  impl->origin = instead.origin;
  impl->source = instead.text;
  RustString variables;
  call_rust(folder.string(), rt_special_tokens, borrow_optional(files.config),
            borrow_optional(files.special_map), variables.out());
  impl->special_tokens = variables.str();
  impl->open();
  ChatTemplate chat;
  chat.impl_ = std::move(impl);
  return chat;
}

ChatTemplate ChatTemplate::from_source(std::string source, std::string bos_token,
                                       std::string eos_token) {
  JsonLine variables;  // an absent token is undefined in the template, as in transformers
  if (!bos_token.empty()) variables.add("bos_token", std::string_view(bos_token));
  if (!eos_token.empty()) variables.add("eos_token", std::string_view(eos_token));
  auto impl = std::make_shared<Impl>();
  impl->source = std::move(source);
  impl->special_tokens = variables.str();
  impl->open();
  ChatTemplate chat;
  chat.impl_ = std::move(impl);
  return chat;
}

ChatTemplate ChatTemplate::with(const TemplateSettings& settings) const {
  if (!exists()) return *this;
  auto impl = std::make_shared<Impl>();
  impl->source = impl_->source;
  impl->origin = impl_->origin;
  impl->special_tokens = impl_->special_tokens;
  impl->settings = settings;
  impl->open();
  ChatTemplate chat;
  chat.impl_ = std::move(impl);
  return chat;
}

bool ChatTemplate::exists() const { return impl_ != nullptr && impl_->handle != nullptr; }
bool ChatTemplate::has_generation_marks() const {
  return exists() && rt_template_has_marks(impl_->handle);
}

ChatTemplate ChatTemplate::for_training() const {
  if (!exists() || !impl_->training) return *this;
  ChatTemplate chat;
  chat.impl_ = impl_->training;
  return chat;
}

std::string ChatTemplate::description() const {
  if (!exists()) return "none";
  const std::string& known = impl_->known_as;
  std::string text = known.empty() ? "" : known + " as published";
  if (!impl_->origin.empty()) text += (known.empty() ? "of " : ", of ") + impl_->origin;
  if (!known.empty()) return text + "; answers: marked by its training variant";
  return text + (has_generation_marks()
                     ? "; answers: its own {% generation %} marks"
                     : "; answers: no marks, found by rendering parts of a conversation");
}

const std::string& ChatTemplate::source() const {
  RETORT_CHECK(impl_ != nullptr) << "ChatTemplate was neither loaded nor made from source";
  return impl_->source;
}

// A template without settings has the fingerprint that it had before there were any.
std::string ChatTemplate::fingerprint() const {
  if (!exists()) return sha256_hex("");
  std::string text = impl_->source;
  if (impl_->settings.variables_json != "{}")
    text += "\nvariables " + impl_->settings.variables_json;
  // The rows that are learned are the variant's.
  if (impl_->training) text += "\ntraining " + impl_->training->source;
  const bool prints_dates = text.find("strftime_now") != std::string::npos;
  if (prints_dates && !impl_->settings.day.empty()) text += "\nday " + impl_->settings.day;
  return sha256_hex(text);
}

ChatTemplate::Rendered ChatTemplate::run(std::string_view messages_json,
                                         std::string_view variables_json,
                                         bool add_generation_prompt, bool assistant_spans) const {
  if (!exists()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the model folder has no chat template: add chat_template.jinja, or a chat_template in "
        "tokenizer_config.json")
        .with("folder", impl_ ? impl_->origin : "");
  }
  RustString text;
  RustSpans spans;
  call_rust(chat_context(impl_->origin), rt_template_render, impl_->handle, borrow(messages_json),
            borrow(variables_json), add_generation_prompt, assistant_spans, text.out(),
            spans.out());
  return {text.str(), spans.pairs()};
}

ChatTemplate::Rendered ChatTemplate::render(std::string_view messages_json,
                                            bool add_generation_prompt,
                                            std::string_view variables_json) const {
  return run(messages_json, variables_json, add_generation_prompt, false);
}

void write_chat_template(const std::string& source, const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder / "additional_chat_templates");
  write_file_atomically(folder / "chat_template.jinja", source);
}

ChatTokens tokenize_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                         std::string_view messages_json, std::string_view variables_json) {
  const auto rendered = chat.for_training().run(messages_json, variables_json, false, true);
  const auto encoding = tokenizer.encode_with_offsets(rendered.text, false);
  ChatTokens tokens{encoding.ids, std::vector<uint8_t>(encoding.ids.size(), 0), {}};
  for (const auto& span : rendered.generation_spans) {
    const auto [first, last] = tokens_of(encoding, span);
    std::fill(tokens.assistant.begin() + static_cast<std::ptrdiff_t>(first),
              tokens.assistant.begin() + static_cast<std::ptrdiff_t>(last), uint8_t{1});
    tokens.spans.emplace_back(first, last);
  }
  return tokens;
}

}  // namespace retort::models
