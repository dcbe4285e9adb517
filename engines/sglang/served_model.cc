#include "engines/sglang/served_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/wire/json_object.h"

namespace retort::engines::sglang {
namespace {

using Json = nlohmann::json;

[[noreturn]] void bad_info(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }

std::string text_field(const Json& info, const std::string& door, const std::string& key) {
  const auto found = info.find(key);
  if (found == info.end() || !found->is_string())
    bad_info(door + ": " + key + " is missing, or no text; SGLang 0.5.23 has it");
  return found->get<std::string>();
}

bool flag(const Json& info, const std::string& door, const std::string& key) {
  const auto found = info.find(key);
  if (found == info.end() || !found->is_boolean())
    bad_info(door + ": " + key + " is missing, or neither true nor false; SGLang 0.5.23 has it");
  return found->get<bool>();
}

bool lies_in(const std::string& path, const std::string& folder) {
  if (folder.empty()) return false;
  const std::string whole = std::filesystem::absolute(folder).lexically_normal().string();
  return path.starts_with(whole.ends_with('/') ? whole : whole + "/");
}

}  // namespace

ModelInfo read_model_info(const std::string& json) {
  const std::string door = "/model_info";
  const Json info = json_object(json, door);
  if (!flag(info, door, "is_generation"))
    throw Error(ErrorCode::kInvalidArgument,
                "the server's model does not generate; it was started for embeddings or rewards");
  return {.name = text_field(info, door, "served_model_name"),
          .model_path = text_field(info, door, "model_path"),
          .weight_version = text_field(info, door, "weight_version")};
}

ServerInfo read_server_info(const std::string& json) {
  const std::string door = "/server_info";
  const Json info = json_object(json, door);
  const auto longest = info.find("max_req_input_len");
  if (longest == info.end() || !longest->is_number_integer() || longest->get<int64_t>() < 2)
    bad_info(door + ": max_req_input_len is missing, or no number; SGLang 0.5.23 has it");

  // An input must be shorter. Completions may have a few tokens more than that together with their
  // prompt, but could not be scored then.
  return {.version = text_field(info, door, "version"),
          .context_tokens = longest->get<int64_t>() - 1,
          .deterministic = flag(info, door, "enable_deterministic_inference")};
}

void check_served_model(const ModelInfo& model, const std::string& wanted,
                        const std::string& weights_folder) {
  if (wanted.empty() || model.name == wanted || lies_in(model.name, weights_folder)) return;
  throw Error(ErrorCode::kMismatch, "served_model: the server has " + json_quote(model.name) +
                                        ", and " + json_quote(wanted) + " is wanted");
}

}  // namespace retort::engines::sglang
