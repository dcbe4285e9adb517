// Calling the Rust crate: borrowed and owned bytes, and its errors as ours. Private to models/text.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
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
  // By name: chat_template.jinja is "default", additional_chat_templates/NAME.jinja NAME; where
  // there is no such file, those of tokenizer_config.json.
  std::map<std::string, std::string> chat_templates;

  // The template named so; null if there is none.
  const std::string* chat_template(const std::string& name) const {
    const auto found = chat_templates.find(name);
    return found == chat_templates.end() ? nullptr : &found->second;
  }

  // kInvalidArgument naming the file, also where templates have names and none is "default" or
  // "tool_use".
  static TextFiles read(const std::filesystem::path& folder);
};

}  // namespace retort::models::detail
