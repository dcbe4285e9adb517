#include "models/safetensors/layout.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/safetensors/header.h"

namespace retort::models {
namespace {

uint64_t elements_of(const std::vector<int64_t>& shape) {
  uint64_t elements = 1;
  for (const int64_t size : shape)
    elements *= static_cast<uint64_t>(size);
  return elements;
}

uint64_t bytes_of(const TensorInfo& tensor) {
  return elements_of(tensor.shape) * c10::elementSize(tensor.dtype);
}

void sort_for_file(std::vector<TensorInfo>& tensors) {
  // Tensors of larger elements come first, so that every tensor begins at a multiple of the size of
  // its elements.
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const size_t left = c10::elementSize(a.dtype);
    const size_t right = c10::elementSize(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
}

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  // The header's offsets count from the end of the header.
  sort_for_file(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t end = offset + bytes_of(tensor);
    header[tensor.name] = {{"dtype", safetensors_dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    const bool added =
        tensors_.emplace(tensor.name, TensorEntry{tensor.dtype, tensor.shape, offset, end}).second;
    RETORT_CHECK(added) << "tensor " << tensor.name << " is given twice";
    offset = end;
  }

  // The file begins with the length of the header in 8 bytes, little-endian; then comes the header,
  // filled up to a multiple of 8.
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  for (size_t i = 0; i < 8; ++i)
    head_ += static_cast<char>(text.size() >> (8 * i));
  head_ += text;

  // From here on offsets count from the start of the file.
  for (auto& [name, entry] : tensors_) {
    entry.begin += head_.size();
    entry.end += head_.size();
  }
  file_bytes_ = head_.size() + offset;
}

SafetensorsFiles SafetensorsFiles::one(std::string name, SafetensorsLayout layout) {
  SafetensorsFiles files;
  files.files.emplace_back(std::move(name), std::move(layout));
  return files;
}

SafetensorsFiles SafetensorsFiles::model(const std::vector<TensorInfo>& tensors,
                                         const SafetensorsWriteOptions& options) {
  // A shard is closed when the next tensor would exceed its limit.
  std::vector<std::vector<TensorInfo>> shards(1);
  uint64_t in_shard = 0;
  uint64_t total = 0;
  uint64_t elements = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    if (in_shard > 0 && in_shard + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
    elements += elements_of(tensor.shape);
  }
  if (shards.size() == 1 && !options.always_index)
    return one("model.safetensors", SafetensorsLayout(std::move(shards[0]), options.metadata));

  // Several shards need an index that says which tensor lies in which.
  SafetensorsFiles files;
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    for (const TensorInfo& tensor : shards[i])
      map[tensor.name] = name;
    files.files.emplace_back(name, SafetensorsLayout(std::move(shards[i]), options.metadata));
  }
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_parameters", elements}, {"total_size", total}};
  index["weight_map"] = map;
  files.index = index.dump(2) + "\n";
  return files;
}

const TensorEntry& SafetensorsFiles::at(const std::string& tensor) const {
  for (const auto& [name, layout] : files)
    if (const auto found = layout.tensors().find(tensor); found != layout.tensors().end())
      return found->second;
  throw Error(ErrorCode::kMismatch, "no file is laid out for tensor '" + tensor + "'")
      .with("tensor", tensor);
}

uint64_t SafetensorsFiles::num_elements() const {
  uint64_t elements = 0;
  for (const auto& [name, layout] : files)
    for (const auto& [tensor, entry] : layout.tensors())
      elements += elements_of(entry.shape);
  return elements;
}

}  // namespace retort::models
