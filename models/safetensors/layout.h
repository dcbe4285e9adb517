// Where the tensors of safetensors files lie, from their names, dtypes and shapes alone: the same
// in every process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace retort::models {

struct TensorInfo {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};

struct TensorEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t end = 0;
};

// One file. Its tensors stand widest elements first, then by name: every tensor is aligned, and the
// same tensors give the same bytes.
class SafetensorsLayout {
 public:
  // kInvalidArgument for a dtype that the format has no name for.
  explicit SafetensorsLayout(std::vector<TensorInfo> tensors,
                             const std::map<std::string, std::string>& metadata = {
                                 {"format", "pt"}});

  // what the file begins with: the header and its length
  const std::string& head() const { return head_; }
  uint64_t file_bytes() const { return file_bytes_; }
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }

 private:
  std::string head_;
  uint64_t file_bytes_ = 0;
  std::map<std::string, TensorEntry> tensors_;
};

struct SafetensorsWriteOptions {
  uint64_t max_shard_bytes = uint64_t{5} << 30;
  bool always_index = false;  // write shards and an index even when one file would do
  std::map<std::string, std::string> metadata{{"format", "pt"}};
};

// The files of a folder that together hold some tensors.
struct SafetensorsFiles {
  std::vector<std::pair<std::string, SafetensorsLayout>> files;  // by file name
  // the text of model.safetensors.index.json; empty: there is none
  std::string index;

  static SafetensorsFiles one(std::string name, SafetensorsLayout layout);
  // model.safetensors, or shards with an index when they exceed max_shard_bytes: filled in the
  // order of `tensors`.
  static SafetensorsFiles model(const std::vector<TensorInfo>& tensors,
                                const SafetensorsWriteOptions& options = {});
  // kMismatch naming the tensor if no file has it.
  const TensorEntry& at(const std::string& tensor) const;
  uint64_t num_elements() const;  // of all tensors
};

}  // namespace retort::models
