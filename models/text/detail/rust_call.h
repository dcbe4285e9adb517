// Calling the Rust crate: borrowed and owned bytes, and its errors as ours. Private to models/text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "models/text/rust/retort_text.h"

namespace retort::models::detail {

inline RtSlice borrow(std::string_view text) {
  // The data of an empty view may be null, which means "absent" to the crate.
  return {reinterpret_cast<const uint8_t*>(text.empty() ? "" : text.data()), text.size()};
}
inline RtSlice borrow_optional(const std::optional<std::string>& text) {
  return text ? borrow(*text) : RtSlice{nullptr, 0};
}

// A value that the crate fills, freed by it with the object.
template <class Raw, void (*free_raw)(Raw)>
class RustOwned {
 public:
  RustOwned() = default;
  ~RustOwned() { free_raw(raw_); }
  RustOwned(const RustOwned&) = delete;
  RustOwned& operator=(const RustOwned&) = delete;
  Raw* out() { return &raw_; }

 protected:
  Raw raw_{};
};

class RustString : public RustOwned<RtString, rt_string_free> {
 public:
  std::string_view view() const { return {reinterpret_cast<const char*>(raw_.data), raw_.len}; }
  std::string str() const { return raw_.len == 0 ? std::string() : std::string(view()); }
};

// Calls `function(arguments..., error)` and throws kInvalidArgument with its error text after
// `context`.
template <class Function, class... Arguments>
void call_rust(const std::string& context, Function function, Arguments... arguments) {
  RustString error;
  if (function(arguments..., error.out()) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                context.empty() ? error.str() : context + ": " + error.str());
  }
}

inline std::optional<std::string> read_if_exists(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  return read_file(path);
}

// The files of a model folder that say what is special and how a chat is written.
struct TextFiles {
  std::optional<std::string> config;       // tokenizer_config.json
  std::optional<std::string> special_map;  // special_tokens_map.json
  // chat_template.jinja with additional_chat_templates/tool_use.jinja, else those of
  // tokenizer_config.json; the latter of two serves conversations with tools
  std::optional<std::string> chat_template;

  static TextFiles read(const std::filesystem::path& folder) {
    TextFiles files;
    files.config = read_if_exists(folder / "tokenizer_config.json");
    files.special_map = read_if_exists(folder / "special_tokens_map.json");
    files.chat_template = read_if_exists(folder / "chat_template.jinja");
    if (!files.chat_template && files.config)
      files.chat_template = of_config(folder, *files.config);
    else if (files.chat_template)
      add_tool_use(folder, *files.chat_template);
    return files;
  }

 private:
  static std::optional<std::string> of_config(const std::filesystem::path& folder,
                                              const std::string& config) {
    RustString source;
    bool found = false;
    call_rust(folder.string(), rt_config_template, borrow(config), &found, source.out());
    return found ? std::optional(source.str()) : std::nullopt;
  }

  // As if both stood in tokenizer_config.json.
  static void add_tool_use(const std::filesystem::path& folder, std::string& chat_template) {
    const auto tool_use = read_if_exists(folder / "additional_chat_templates" / "tool_use.jinja");
    if (!tool_use) return;
    const auto named = [](std::string_view name, std::string_view source) {
      return JsonLine().add("name", name).add("template", source).str();
    };
    const std::string config = R"({"chat_template": [)" + named("default", chat_template) + ", " +
                               named("tool_use", *tool_use) + "]}";
    chat_template = of_config(folder, config).value();
  }
};

}  // namespace retort::models::detail
