// Where and how a command writes a checkpoint. Private to launch/.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/error.h"

namespace retort::launch {

// Makes the folders above `output`. kInvalidArgument if it exists and is not empty.
inline void prepare_output_folder(const std::string& output) {
  namespace fs = std::filesystem;
  if (fs::exists(output) && !fs::is_empty(output))
    throw Error(ErrorCode::kInvalidArgument, "--output '" + output + "' exists and is not empty");
  if (const auto parent = fs::path(output).parent_path(); !parent.empty())
    fs::create_directories(parent);
}

// transformers' name of a --dtype: bf16, fp16, fp32 or that name itself; "" is the model's own.
// kInvalidArgument for any other.
inline std::string file_dtype(const std::string& name, const std::string& of_the_model) {
  static const std::map<std::string, std::string> kNames{
      {"fp32", "float32"},    {"fp16", "float16"},    {"bf16", "bfloat16"},
      {"float32", "float32"}, {"float16", "float16"}, {"bfloat16", "bfloat16"}};
  if (name.empty()) return of_the_model;
  const auto found = kNames.find(name);
  if (found == kNames.end())
    throw Error(ErrorCode::kInvalidArgument, "--dtype '" + name + "' is not bf16, fp16 or fp32");
  return found->second;
}

}  // namespace retort::launch
