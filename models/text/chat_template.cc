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
  RtTemplate* handle = nullptr;  // null: the folder has no template of that name
  std::string source;
  std::shared_ptr<const Impl> tool_use;  // for conversations with tools; null: this one
  std::string origin;  // the folder, file or name, for messages; empty for a template from source
  std::string special_tokens = "{}";  // by their names
  TemplateSettings settings;
  std::string known_as;                  // the name of a published template with a variant
  std::shared_ptr<const Impl> training;  // the variant of this or of tool_use; null: there is none

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { rt_template_free(handle); }
  void open();
  // Returns this template with other settings.
  std::shared_ptr<Impl> with(const TemplateSettings& settings) const;
  // Returns the template that renders a conversation with these variables.
  const Impl& pick(std::string_view variables_json) const;
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

// Returns the tokens from the first that ends after `begin` to the last that starts before `end`. A
// token that straddles a border counts as the assistant's, as in transformers.
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

// Puts `own` in front of the values of the same names in `others`.
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
  std::optional<TrainingTemplate> known;
  if (!source.empty() || tool_use == nullptr) {
    const std::string variables = merged(special_tokens, settings.variables_json);
    call_rust(chat_context(origin), rt_template_open, borrow(source), borrow(variables),
              borrow(settings.day), &handle);
    if (!rt_template_has_marks(handle)) known = training_template(source);
  }
  const bool tools_known = tool_use != nullptr && tool_use->training != nullptr;
  if (!known && !tools_known) return;

  // The variant prints the same text with marks around the answers. It is a template of its own,
  // with the settings of this one.
  auto variant = std::make_shared<Impl>();
  variant->source = known ? std::move(known->source) : source;
  variant->tool_use = tools_known ? tool_use->training : tool_use;
  variant->origin = origin;
  variant->special_tokens = special_tokens;
  variant->settings = settings;
  variant->open();
  training = std::move(variant);
  if (known) known_as = std::move(known->name);
}

std::shared_ptr<ChatTemplate::Impl> ChatTemplate::Impl::with(
    const TemplateSettings& settings) const {
  auto impl = std::make_shared<Impl>();
  if (tool_use != nullptr) impl->tool_use = tool_use->with(settings);
  impl->source = source;
  impl->origin = origin;
  impl->special_tokens = special_tokens;
  impl->settings = settings;
  impl->open();
  return impl;
}

// Follows get_chat_template of transformers: tool_use if tools are given, an empty list too, else
// default.
const ChatTemplate::Impl& ChatTemplate::Impl::pick(std::string_view variables_json) const {
  if (tool_use == nullptr) return *this;
  const auto gives_tools = [](std::string_view variables) -> std::optional<bool> {
    const auto parsed = nlohmann::json::parse(variables, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object() || !parsed.contains("tools")) return std::nullopt;
    return !parsed["tools"].is_null();
  };
  const std::optional<bool> own = gives_tools(variables_json);
  const bool tools = own ? *own : gives_tools(settings.variables_json).value_or(false);
  return tools ? *tool_use : *this;
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& folder) {
  const auto files = detail::TextFiles::read(folder);
  const std::string* source = files.chat_template("default");
  const std::string* tool_source = files.chat_template("tool_use");
  auto impl = std::make_shared<Impl>();
  impl->origin = folder.string();
  if (source != nullptr || tool_source != nullptr) {
    RustString variables;
    call_rust(impl->origin, rt_special_tokens, borrow_optional(files.config),
              borrow_optional(files.special_map), variables.out());
    impl->special_tokens = variables.str();

    // The template for conversations with tools is one of its own; a folder may have it alone.
    if (tool_source != nullptr) {
      auto with_tools = std::make_shared<Impl>();
      with_tools->source = *tool_source;
      with_tools->origin = impl->origin + " (tool_use)";
      with_tools->special_tokens = impl->special_tokens;
      with_tools->open();
      impl->tool_use = std::move(with_tools);
    }
    if (source != nullptr) impl->source = *source;
    impl->open();
  }
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
  ChatTemplate chat;
  chat.impl_ = impl_->with(settings);
  return chat;
}

bool ChatTemplate::exists() const {
  return impl_ != nullptr && (impl_->handle != nullptr || impl_->tool_use != nullptr);
}
TemplateSettings ChatTemplate::settings() const {
  return impl_ == nullptr ? TemplateSettings{} : impl_->settings;
}
bool ChatTemplate::has_generation_marks(std::string_view variables_json) const {
  if (!exists()) return false;
  const Impl& picked = impl_->pick(variables_json);
  return picked.handle != nullptr && rt_template_has_marks(picked.handle);
}

ChatTemplate ChatTemplate::for_training() const {
  if (!exists() || !impl_->training) return *this;
  ChatTemplate chat;
  chat.impl_ = impl_->training;
  return chat;
}

std::string ChatTemplate::description() const {
  if (!exists()) return "none";
  const auto describe = [](const Impl& impl) -> std::string {
    const std::string& known = impl.known_as;
    std::string text = known.empty() ? "" : known + " as published";
    if (!impl.origin.empty()) text += (known.empty() ? "of " : ", of ") + impl.origin;
    if (!known.empty()) return text + "; answers: marked by its training variant";
    return text + (rt_template_has_marks(impl.handle)
                       ? "; answers: its own {% generation %} marks"
                       : "; answers: no marks, found by rendering parts of a conversation");
  };
  std::string text = impl_->handle != nullptr ? describe(*impl_) + "; " : "";
  if (impl_->tool_use == nullptr) return text.substr(0, text.size() - 2);
  return text + "for conversations with tools: " + describe(*impl_->tool_use);
}

const std::string& ChatTemplate::source() const {
  RETORT_CHECK(impl_ != nullptr) << "ChatTemplate was neither loaded nor made from source";
  return impl_->source;
}

const std::string& ChatTemplate::tool_use_source() const {
  static const std::string kNone;
  return impl_ != nullptr && impl_->tool_use != nullptr ? impl_->tool_use->source : kNone;
}

bool ChatTemplate::mentions(std::string_view word) const {
  const auto holds = [&](const std::string& text) { return text.find(word) != std::string::npos; };
  return exists() && (holds(impl_->source) || holds(tool_use_source()) ||
                      holds(impl_->settings.variables_json));
}

// A template without settings has the fingerprint that it had before there were any.
std::string ChatTemplate::fingerprint() const {
  if (!exists()) return sha256_hex("");
  std::string text = impl_->source;
  if (impl_->tool_use) text += "\ntool_use " + impl_->tool_use->source;
  if (impl_->settings.variables_json != "{}")
    text += "\nvariables " + impl_->settings.variables_json;
  // The rows that are learned are rendered by the variant, so it counts too.
  if (impl_->training) text += "\ntraining " + impl_->training->source;
  if (impl_->training && impl_->training->tool_use)
    text += "\ntool_use " + impl_->training->tool_use->source;
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
  const Impl& picked = impl_->pick(variables_json);
  if (picked.handle == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "a conversation without tools, and no chat template of the model folder is named "
                "'default' (found: tool_use, for conversations with tools); save the one to use "
                "as chat_template.jinja in the folder")
        .with("folder", impl_->origin);
  }
  RustString text;
  RustSpans spans;
  call_rust(chat_context(picked.origin), rt_template_render, picked.handle, borrow(messages_json),
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
  auto rendered = chat.for_training().run(messages_json, variables_json, false, true);
  const auto encoding = tokenizer.encode_with_offsets(rendered.text, false);
  ChatTokens tokens{.ids = encoding.ids,
                    .assistant = std::vector<uint8_t>(encoding.ids.size(), 0),
                    .spans = {},
                    .text = std::move(rendered.text)};
  for (const auto& span : rendered.generation_spans) {
    const auto [first, last] = tokens_of(encoding, span);
    std::fill(tokens.assistant.begin() + static_cast<std::ptrdiff_t>(first),
              tokens.assistant.begin() + static_cast<std::ptrdiff_t>(last), uint8_t{1});
    tokens.spans.emplace_back(first, last);
  }
  return tokens;
}

}  // namespace retort::models
