#include "models/safetensors/writer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/write_turn.h"
#include "models/safetensors/tensor_runs.h"

namespace retort::models {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kBufferElements = 32 << 10;

// Within a turn so many bytes go to the disk before the writer gives a sign of life.
constexpr uint64_t kTurnPart = 128 << 20;
// A turn is asked for again after this, while another writer has it.
constexpr std::chrono::milliseconds kTurnPause{20};

}  // namespace

void create_safetensors(const fs::path& folder, const SafetensorsFiles& files) {
  for (const auto& [name, layout] : files.files)
    reserve_file(folder / name, layout.head(), layout.file_bytes());
  if (!files.index.empty())
    write_file_atomically(folder / "model.safetensors.index.json", files.index);
}

struct SafetensorsSliceWriter::Target {
  fs::path path;
  const SafetensorsLayout* layout;
  FileChecksum checksum;
  std::optional<WriteTurn> turn{};  // given back after the file is closed
  std::optional<SharedFile> file{};
  uint64_t unsynced = 0;  // bytes, of this turn

  void write(uint64_t offset, std::span<const std::byte> bytes) {
    if (!file) file.emplace(path);
    file->write(offset, bytes);
    if (!turn || (unsynced += bytes.size()) < kTurnPart) return;
    file->sync();
    turn->beat();
    unsynced = 0;
  }

  bool try_enter() {
    turn = WriteTurn::try_take(path);
    return turn.has_value();
  }
  void leave() {
    if (file) file->sync();
    file.reset();
    turn.reset();
    unsynced = 0;
  }
};

SafetensorsSliceWriter::SafetensorsSliceWriter(fs::path folder, const SafetensorsFiles& files,
                                               SliceWriterOptions options)
    : folder_(std::move(folder)), options_(options) {
  for (const auto& [name, layout] : files.files)
    targets_.push_back(std::make_unique<Target>(
        Target{folder_ / name, &layout, FileChecksum(layout.file_bytes())}));
}

SafetensorsSliceWriter::~SafetensorsSliceWriter() = default;

SafetensorsSliceWriter::Target& SafetensorsSliceWriter::find(const parallel::TensorPiece& piece) {
  // The shape is compared, because a piece of a tensor of another shape would land in wrong places.
  for (const auto& target : targets_) {
    const auto found = target->layout->tensors().find(piece.name);
    if (found == target->layout->tensors().end()) continue;
    if (found->second.shape == piece.shape) return *target;
    std::ostringstream text;
    text << target->path.string() << ": tensor '" << piece.name << "' is laid out with shape "
         << at::IntArrayRef(found->second.shape) << ", a piece is of one with "
         << at::IntArrayRef(piece.shape);
    throw Error(ErrorCode::kMismatch, text.str()).with("tensor", piece.name);
  }
  throw Error(ErrorCode::kMismatch,
              folder_.string() + ": no file is laid out for tensor '" + piece.name + "'")
      .with("tensor", piece.name);
}

void SafetensorsSliceWriter::write(const parallel::TensorPiece& piece) {
  // Both checks come before the first byte, so that a wrong piece leaves the file as it is.
  Target& target = find(piece);
  const SliceRuns runs = slice_runs(piece);
  const int64_t count = piece.values.numel();
  if (count == 0) return;
  if (options_.in_turns) enter(target);
  const TensorEntry& entry = target.layout->tensors().at(piece.name);
  const size_t size = c10::elementSize(entry.dtype);

  // Writes `values` as elements [begin, begin + length) of the slice.
  const auto put = [&](const at::Tensor& values, int64_t begin, int64_t length) {
    const auto* data = static_cast<const std::byte*>(values.const_data_ptr());
    runs.visit(begin, length, [&](int64_t whole, int64_t own, int64_t n) {
      const uint64_t offset = entry.begin + static_cast<uint64_t>(whole) * size;
      const std::span bytes(data + static_cast<size_t>(own) * size, static_cast<size_t>(n) * size);
      target.write(offset, bytes);
      target.checksum.add(bytes, offset);
    });
  };

  // Values of the dtype of the file are written as they lie, others through a buffer of fixed size.
  if (piece.values.scalar_type() == entry.dtype && piece.values.is_cpu()) {
    put(piece.values, piece.begin, count);
  } else {
    const at::NoGradGuard no_grad;
    if (!buffer_.defined() || buffer_.scalar_type() != entry.dtype)
      buffer_ = at::empty({kBufferElements}, at::TensorOptions().dtype(entry.dtype));
    for (int64_t done = 0; done < count; done += kBufferElements) {
      const int64_t length = std::min(kBufferElements, count - done);
      buffer_.narrow(0, 0, length).copy_(piece.values.narrow(0, done, length));
      put(buffer_, piece.begin + done, length);
    }
  }
  num_elements_ += static_cast<uint64_t>(count);
}

void SafetensorsSliceWriter::write(std::span<const parallel::TensorPiece> pieces) {
  if (!options_.in_turns) {
    for (const parallel::TensorPiece& piece : pieces)
      write(piece);
    return;
  }

  // Pieces are sorted by file, so that each file needs one turn. A file without an element gets
  // none: it would be a turn for nothing.
  std::map<Target*, std::vector<const parallel::TensorPiece*>> waiting;
  for (const parallel::TensorPiece& piece : pieces) {
    Target& target = find(piece);
    if (piece.values.numel() > 0) waiting[&target].push_back(&piece);
  }

  // A writer that waits has no turn of its own (enter()), and takes the file that is free first.
  leave();
  TurnWatch watch(options_.patience);
  while (!waiting.empty()) {
    const auto free = std::find_if(waiting.begin(), waiting.end(),
                                   [](const auto& entry) { return entry.first->try_enter(); });
    if (free == waiting.end()) {
      for (const auto& [target, _] : waiting)
        watch.see(target->path);
      std::this_thread::sleep_for(kTurnPause);
      continue;
    }
    current_ = free->first;
    for (const parallel::TensorPiece* piece : free->second)
      write(*piece);
    leave();
    waiting.erase(free);
  }
}

// Waits until this writer has the turn at `target`. It gives its own turn back first: two writers
// that wait for each other would wait for ever.
void SafetensorsSliceWriter::enter(Target& target) {
  if (current_ == &target) return;
  leave();
  for (TurnWatch watch(options_.patience); !target.try_enter();) {
    watch.see(target.path);
    std::this_thread::sleep_for(kTurnPause);
  }
  current_ = &target;
}

void SafetensorsSliceWriter::leave() {
  if (Target* left = std::exchange(current_, nullptr)) left->leave();
}

void SafetensorsSliceWriter::finish() {
  leave();
  for (const auto& target : targets_)
    if (target->file) target->file->sync();
}

std::vector<FileChecksum> SafetensorsSliceWriter::checksums() const {
  std::vector<FileChecksum> all;
  for (const auto& target : targets_)
    all.push_back(target->checksum);
  return all;
}

parallel::TensorPiece whole_piece(const std::string& name, const at::Tensor& tensor) {
  return parameter_piece({.name = name, .value = tensor});
}

parallel::TensorPiece parameter_piece(const parallel::NamedParameter& parameter) {
  const at::Tensor value = parameter.value.detach();
  return {.name = parameter.name,
          .shape = parameter.shard.shape.empty() ? value.sizes().vec() : parameter.shard.shape,
          .slice_shape = value.sizes().vec(),
          .dim = parameter.shard.dim,
          .offset = parameter.shard.begin,
          .values = value.reshape({-1})};
}

parallel::TensorPiece snapshot(const parallel::TensorPiece& piece, at::ScalarType dtype) {
  parallel::TensorPiece copy = piece;
  copy.values = at::empty(piece.values.sizes(), at::TensorOptions().dtype(dtype))
                    .copy_(piece.values.detach());
  return copy;
}

}  // namespace retort::models
