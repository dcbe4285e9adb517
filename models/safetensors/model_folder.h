// What stands where a Hugging Face model folder was expected, for the message that refuses it.
#pragma once

#include <filesystem>
#include <string>

namespace retort::models {

// Why `path` is no model folder and what to name or do instead, as ": it is ...", to stand behind a
// sentence; "" where nothing is known about it. Of a name that is not there: a near name beside it,
// or that it is one of the Hugging Face Hub, from which nothing is downloaded here.
std::string model_folder_hint(const std::filesystem::path& path);

// The same of a folder without safetensors: weights in another format and how to turn them over.
std::string weights_hint(const std::filesystem::path& folder);

}  // namespace retort::models
