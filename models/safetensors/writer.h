// Safetensors files that several processes write together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "models/safetensors/file_checksums.h"
#include "models/safetensors/layout.h"
#include "parallel/parameter.h"

namespace retort::models {

// One process makes the files in `folder` (which must exist): headers and index are written and the
// room for every tensor is reserved, so that a full disk shows here (kResourceExhausted naming the
// file).
void create_safetensors(const std::filesystem::path& folder, const SafetensorsFiles& files);

struct SliceWriterOptions {
  // The writers of the folder have several page caches (base/write_turn.h): a file has one writer
  // at a time, which opens, writes, syncs and closes it. Else all may write at once.
  bool in_turns = false;
  // how long another's turn may stand still
  Duration patience{600'000};
};

// Then any number of processes write the elements, each its own, into files that all see.
// Threads: one at a time. Errors: kUnavailable / kResourceExhausted naming the file.
class SafetensorsSliceWriter {
 public:
  // `files`: as given to create_safetensors; must outlive the writer. A file is opened when its
  // first element is written.
  SafetensorsSliceWriter(std::filesystem::path folder, const SafetensorsFiles& files,
                         SliceWriterOptions options = {});
  ~SafetensorsSliceWriter();
  SafetensorsSliceWriter(const SafetensorsSliceWriter&) = delete;

  // Converts to the file's dtype (as Tensor::to, through a buffer of at most 256 KiB) and writes
  // each element to its place. Values of the file's dtype on the CPU are written as they lie,
  // without any LibTorch operation. kMismatch naming a tensor that the files do not have in that
  // shape.
  void write(const parallel::TensorPiece& piece);
  // The same for all of them; in turns file after file, one that nobody else writes first.
  void write(std::span<const parallel::TensorPiece> pieces);
  // Every element written is on the disk.
  void finish();
  uint64_t num_elements() const { return num_elements_; }  // written so far
  // Of the elements written so far, as they were in memory, for each of the files in their order.
  // The files' own are the sums over all writers, and what is written by none (the head).
  std::vector<FileChecksum> checksums() const;

 private:
  struct Target;
  Target& find(const parallel::TensorPiece& piece);
  void enter(Target& target);
  void leave();

  std::filesystem::path folder_;
  const SliceWriterOptions options_;
  Target* current_ = nullptr;                     // whose turn this writer has
  std::vector<std::unique_ptr<Target>> targets_;  // one for each file
  at::Tensor buffer_;
  uint64_t num_elements_ = 0;
};

// The whole of a tensor, and what a rank holds of a parameter. They share memory with it if it is
// contiguous.
parallel::TensorPiece whole_piece(const std::string& name, const at::Tensor& tensor);
parallel::TensorPiece parameter_piece(const parallel::NamedParameter& parameter);
// A copy of its own, in `dtype`.
parallel::TensorPiece snapshot(const parallel::TensorPiece& piece, at::ScalarType dtype);

}  // namespace retort::models
