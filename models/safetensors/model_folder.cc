#include "models/safetensors/model_folder.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/file_kind.h"
#include "base/similar_file.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";

// Sorted, so that every message about a folder is the same.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string first_ending(const std::vector<std::string>& names, std::string_view ending) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const std::string& name) { return name.ends_with(ending); });
  return found == names.end() ? "" : *found;
}

bool has_config(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kConfig, ignored);
}

// Returns the folder below this one that is a model, if there is exactly one; in the cache of the
// Hub the weights lie in snapshots/COMMIT.
std::string model_below(const fs::path& folder) {
  for (const fs::path& place : {folder, folder / "snapshots"}) {
    std::vector<std::string> models;
    for (const std::string& name : names_in(place))
      if (has_config(place / name)) models.push_back((place / name).string());
    if (models.size() == 1) return models.front();
  }
  return "";
}

std::string hint_of_file(const fs::path& path) {
  const FileKind kind = file_kind_of(path);
  if (kind == FileKind::kGguf)
    return ": it is a GGUF model, which is written here (retort model export) and not read; "
           "expected "
           "is the folder with safetensors that it was made of";
  if (has_config(path.parent_path()) && !path.parent_path().empty())
    return ": it is a file; name the folder that holds it, '" + path.parent_path().string() + "'";
  const std::string what(what_it_is(kind));
  return what.empty() ? ": it is a file" : ": it is " + what;
}

}  // namespace

std::string weights_hint(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  const auto has = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (has("adapter_model.safetensors"))
    return ": it holds an adapter of PEFT beside a config.json but not the model's own weights; "
           "take config.json away to use it as an adapter, or fetch the model's weights";
  for (const char* ending : {".bin", ".pt", ".pth", ".ckpt"})
    if (const std::string name = first_ending(names, ending); !name.empty())
      return ": '" + name +
             "' is a pickle of PyTorch, which is not read, as it may run any code; "
             "turn it into safetensors: transformers' AutoModelForCausalLM.from_pretrained(FOLDER)"
             ".save_pretrained(NEW_FOLDER)";
  if (const std::string name = first_ending(names, ".gguf"); !name.empty())
    return ": '" + name +
           "' is a GGUF model, which is written here and not read; fetch the folder "
           "with safetensors that it was made of";
  if (const std::string name = first_ending(names, ".safetensors"); !name.empty())
    return ": of '" + name +
           "' it is not known what it holds; a model in one file is called "
           "model.safetensors, one in several has model.safetensors.index.json";
  return "";
}

std::string model_folder_hint(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return hint_of_file(path);
  if (!fs::is_directory(path, ignored)) {
    if (const std::string near = similar_file(path); !near.empty())
      return "; did you mean '" + near + "'?";
    if (is_hub_name(path.string()))
      return "; nothing is downloaded here: if it is a name on the Hugging Face Hub, fetch it with "
             "`hf download " +
             path.string() + " --local-dir FOLDER` and name that folder";
    return "";
  }

  if (const std::string below = model_below(path); !below.empty())
    return "; did you mean '" + below + "'?";
  return weights_hint(path);
}

}  // namespace retort::models
