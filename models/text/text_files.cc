#include <nlohmann/json.hpp>

#include "models/text/detail/rust_call.h"

namespace retort::models::detail {
namespace {

namespace fs = std::filesystem;

// Reads the templates as transformers does: if any has a file of its own, those of
// tokenizer_config.json count as absent.
std::map<std::string, std::string> read_chat_templates(const fs::path& folder,
                                                       const std::optional<std::string>& config) {
  std::map<std::string, std::string> templates;
  if (auto source = read_if_exists(folder / "chat_template.jinja"))
    templates["default"] = *std::move(source);
  const fs::path additional = folder / "additional_chat_templates";
  if (fs::is_directory(additional)) {
    for (const auto& entry : fs::directory_iterator(additional)) {
      if (entry.path().extension() == ".jinja")
        templates[entry.path().stem().string()] = read_file(entry.path());
    }
  }
  if (!templates.empty() || !config) return templates;

  // No template has a file of its own, so those of tokenizer_config.json count.
  RustString named;
  call_rust(folder.string(), rt_config_templates, borrow(*config), named.out());
  const auto parsed = nlohmann::json::parse(named.view());
  for (const auto& [name, source] : parsed.items())
    templates[name] = source.get<std::string>();
  return templates;
}

}  // namespace

TextFiles TextFiles::read(const fs::path& folder) {
  TextFiles files;
  files.config = read_if_exists(folder / "tokenizer_config.json");
  files.special_map = read_if_exists(folder / "special_tokens_map.json");
  files.chat_templates = read_chat_templates(folder, files.config);

  // A folder may have templates of other names alone, of which nobody could say which one to use.
  const bool usable = files.chat_template("default") || files.chat_template("tool_use");
  if (files.chat_templates.empty() || usable) return files;
  std::string names;
  for (const auto& [name, source] : files.chat_templates)
    names += (names.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kInvalidArgument,
              folder.string() +
                  ": no chat template is named 'default', or 'tool_use' for rows with tools "
                  "(found: " +
                  names + "); save the one to use as chat_template.jinja in the folder");
}

}  // namespace retort::models::detail
