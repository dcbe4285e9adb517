// Calling the Rust crate: borrowed and owned bytes, and its errors as ours. Private to models/text.
#pragma once

#include <filesystem>
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
  // chat_template.jinja, else the template of tokenizer_config.json
  std::optional<std::string> chat_template;

  static TextFiles read(const std::filesystem::path& folder) {
    TextFiles files;
    files.config = read_if_exists(folder / "tokenizer_config.json");
    files.special_map = read_if_exists(folder / "special_tokens_map.json");
    files.chat_template = read_if_exists(folder / "chat_template.jinja");
    if (!files.chat_template && files.config) {
      RustString source;
      bool found = false;
      call_rust(folder.string(), rt_config_template, borrow(*files.config), &found, source.out());
      if (found) files.chat_template = source.str();
    }
    return files;
  }
};

}  // namespace retort::models::detail
