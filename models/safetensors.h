// Reading (mmap) and writing safetensors files, single or sharded with model.safetensors.index.json.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace retort::models {

// A read-only view of a checkpoint's tensors. Tensors returned by get() alias the mapping and keep it alive; copy before
// writing. kCorrupt naming file, tensor and expectation for a header that lies (size, offsets, dtype, overlap, bounds).
class SafetensorsReader {
 public:
  // `path`: a .safetensors file, or a folder (model.safetensors, or model.safetensors.index.json and its shards).
  explicit SafetensorsReader(const std::filesystem::path& path);
  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;  // sorted
  at::Tensor get(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  // The `__metadata__` of the (first) file.
  const std::map<std::string, std::string>& metadata() const;
  bool sharded() const;
  // Bytes of tensor data in the largest file.
  uint64_t largest_shard_bytes() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

struct SafetensorsWriteOptions {
  uint64_t max_shard_bytes = uint64_t{5} << 30;
  bool always_index = false;  // write shards and an index even when one file would do
  std::map<std::string, std::string> metadata{{"format", "pt"}};
};
// One file, atomically.
void write_safetensors(const std::filesystem::path& file, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
// model.safetensors, or shards with an index when they exceed max_shard_bytes.
void write_safetensors_folder(const std::filesystem::path& folder, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const SafetensorsWriteOptions& options = {});

}  // namespace retort::models
