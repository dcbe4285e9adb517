// Reading (mmap) and writing safetensors files, single or sharded with
// model.safetensors.index.json.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/safetensors/layout.h"
#include "parallel/parameter.h"

namespace retort::models {

// A read-only view of a checkpoint's tensors. Tensors returned by get() alias the mapping and keep
// it alive; copy before writing. kCorrupt naming file, tensor and expectation for a header that
// lies (size, offsets, dtype, overlap, bounds).
//
// Of a checkpoint that has checksums (models/safetensors/file_checksums.h) what is given out was
// compared with them: the header when the file is opened, elements when they are read or copied,
// which throws the damage() of their file. Elements that nobody asks for are not read.
class SafetensorsReader {
 public:
  // `path`: a .safetensors file, or a folder (model.safetensors, or model.safetensors.index.json
  // and its shards).
  explicit SafetensorsReader(const std::filesystem::path& path);
  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;  // sorted
  at::Tensor get(const std::string& name) const;
  // Rows [first, first + count) of it.
  at::Tensor rows(const std::string& name, int64_t first, int64_t count) const;
  // Rows [first, first + to.size(0)) of it, converted to the dtype of `to`: a contiguous tensor of
  // the CPU with rows of the same shape, best one that nobody has written to. Faster than copying
  // rows(), as each MiB is compared while it is copied. After an error some of it has been written.
  void copy_rows(const std::string& name, int64_t first, const at::Tensor& to) const;
  // The tensor `from`, which must be there, is called `to` from now on, in copies of this too.
  void rename(const std::string& from, const std::string& to);
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  // Fills piece.values, which says how many elements and in which dtype, with those elements of the
  // whole tensor; reads no others. kMismatch naming the tensor if it is missing, or has another
  // shape than the whole. After damage() some of the values have been written.
  void read_piece(parallel::TensorPiece& piece) const;
  // The `__metadata__` of the (first) file.
  const std::map<std::string, std::string>& metadata() const;
  bool sharded() const;
  // Bytes of tensor data in the largest file.
  uint64_t largest_shard_bytes() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// One file, atomically, by one process (several: models/safetensors/writer.h).
void write_safetensors(const std::filesystem::path& file,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
// The files of SafetensorsFiles::model, each atomically.
void write_safetensors_folder(const std::filesystem::path& folder,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const SafetensorsWriteOptions& options = {});

}  // namespace retort::models
