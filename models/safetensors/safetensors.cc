#include "models/safetensors/safetensors.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/sizes.h"
#include "models/safetensors/file_checksums.h"
#include "models/safetensors/model_folder.h"
#include "models/safetensors/shard.h"
#include "models/safetensors/tensor_runs.h"
#include "models/safetensors/writer.h"

namespace retort::models {
namespace {

[[noreturn]] void corrupt(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, file.string() + ": " + what).with("file", file.string());
}

// Reads which shard has which tensor from model.safetensors.index.json.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  std::map<std::string, std::string> map;
  nlohmann::json index;
  const std::string text = read_file(path);
  expect_text(text, path.string(), "JSON");
  try {
    index = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    corrupt(path, std::string("not valid JSON: ") + e.what());
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    corrupt(path, "expected an object with a weight_map");
  }

  // A shard must be a plain name, so that an index cannot lead out of its folder.
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) corrupt(path, "the shard of tensor '" + name + "' is not a file name");
    const std::string shard = file.get<std::string>();
    if (shard.empty() || std::filesystem::path(shard).filename() != shard || shard == "..") {
      corrupt(path, "the shard of tensor '" + name + "' is '" + shard +
                        "', expected a file in the same folder");
    }
    map.emplace(name, shard);
  }
  return map;
}

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<TensorInfo> infos_of(const NamedTensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors)
    infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return infos;
}

// Writes a file under a temporary name first, so that no reader ever sees a part of it.
void write_atomically(const std::filesystem::path& folder, const std::string& name,
                      const SafetensorsLayout& layout, const NamedTensors& tensors) {
  const std::string temporary = name + temporary_suffix();
  const SafetensorsFiles files = SafetensorsFiles::one(temporary, layout);
  try {
    create_safetensors(folder, files);
    SafetensorsSliceWriter writer(folder, files);
    for (const auto& [tensor, value] : tensors)
      if (layout.tensors().contains(tensor)) writer.write(whole_piece(tensor, value));
    writer.finish();
    rename_file(folder / temporary, folder / name);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(folder / temporary, ignored);
    throw;
  }
}

}  // namespace

struct SafetensorsReader::Impl {
  std::map<std::string, std::shared_ptr<SafetensorsShard>> tensors;  // by tensor name
  std::map<std::string, std::string> metadata;
  bool sharded = false;
  uint64_t largest_shard_bytes = 0;

  SliceRuns runs_of(const parallel::TensorPiece& piece) const;
  // Says in which file and bytes rows [first, first + count) of a tensor lie.
  struct Rows {
    const SafetensorsShard& shard;
    const TensorEntry& entry;
    uint64_t begin, end;
  };
  Rows find_rows(const std::string& name, int64_t first, int64_t count) const;

  void open(const std::filesystem::path& file,
            const std::function<bool(const std::string&)>& wanted) {
    auto shard = std::make_shared<SafetensorsShard>(file);
    if (tensors.empty()) metadata = shard->header.metadata;
    uint64_t bytes = 0;
    for (const auto& [name, entry] : shard->header.tensors) {
      bytes += entry.end - entry.begin;
      if (wanted(name)) tensors[name] = shard;
    }
    largest_shard_bytes = std::max(largest_shard_bytes, bytes);
  }
  void open_shards(const std::filesystem::path& folder);

  const std::pair<const std::string, std::shared_ptr<SafetensorsShard>>& find(
      const std::string& name) const {
    const auto it = tensors.find(name);
    if (it == tensors.end())
      throw Error(ErrorCode::kMismatch, "the checkpoint has no tensor '" + name + "'")
          .with("tensor", name);
    return *it;
  }
};

void SafetensorsReader::Impl::open_shards(const std::filesystem::path& folder) {
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    throw Error(ErrorCode::kInvalidArgument,
                folder.string() +
                    ": neither model.safetensors nor model.safetensors.index.json is there" +
                    weights_hint(folder))
        .with("folder", folder.string());
  }

  // From each shard only the tensors are taken that the index places there, because another shard
  // may have them too.
  sharded = true;
  const std::map<std::string, std::string> map = read_index(index);
  std::set<std::string> files;
  for (const auto& [name, file] : map)
    files.insert(file);
  for (const std::string& file : files) {
    if (!std::filesystem::exists(folder / file))
      corrupt(index, "its shard '" + file + "' is missing");
    open(folder / file, [&](const std::string& name) {
      const auto it = map.find(name);
      return it != map.end() && it->second == file;
    });
  }

  // An index may claim more than the shards have.
  for (const auto& [name, file] : map) {
    if (!tensors.contains(name))
      corrupt(folder / file, "the index says that it holds tensor '" + name + "', it does not");
  }
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : impl_(std::make_shared<Impl>()) {
  const auto all = [](const std::string&) { return true; };
  if (!std::filesystem::is_directory(path)) {
    impl_->open(path, all);
  } else if (std::filesystem::exists(path / "model.safetensors")) {
    impl_->open(path / "model.safetensors", all);
  } else {
    impl_->open_shards(path);
  }
}

void SafetensorsReader::rename(const std::string& from, const std::string& to) {
  const std::shared_ptr<SafetensorsShard> shard = impl_->find(from).second;
  auto entry = shard->header.tensors.extract(from);
  entry.key() = to;
  shard->header.tensors.insert(std::move(entry));
  impl_->tensors.erase(from);
  impl_->tensors[to] = shard;
}

bool SafetensorsReader::contains(const std::string& name) const {
  return impl_->tensors.contains(name);
}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : impl_->tensors)
    names.push_back(name);
  return names;
}

at::Tensor SafetensorsReader::get(const std::string& name) const {
  const auto& [key, shard] = impl_->find(name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  shard->check(entry.begin, entry.end);
  return shard->view(entry.dtype, entry.shape, entry.begin, entry.end);
}

SafetensorsReader::Impl::Rows SafetensorsReader::Impl::find_rows(const std::string& name,
                                                                 int64_t first,
                                                                 int64_t count) const {
  const auto& [key, shard] = find(name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  const std::vector<int64_t>& shape = entry.shape;
  RETORT_CHECK(!shape.empty() && first >= 0 && count >= 0 && first + count <= shape[0])
      << name << " has no rows " << first << " to " << first + count;
  const uint64_t row =
      shape[0] == 0 ? 0 : (entry.end - entry.begin) / static_cast<uint64_t>(shape[0]);
  const uint64_t begin = entry.begin + static_cast<uint64_t>(first) * row;
  return {*shard, entry, begin, begin + static_cast<uint64_t>(count) * row};
}

at::Tensor SafetensorsReader::rows(const std::string& name, int64_t first, int64_t count) const {
  const Impl::Rows rows = impl_->find_rows(name, first, count);
  std::vector<int64_t> shape = rows.entry.shape;
  shape[0] = count;
  rows.shard.check(rows.begin, rows.end);
  return rows.shard.view(rows.entry.dtype, shape, rows.begin, rows.end);
}

void SafetensorsReader::copy_rows(const std::string& name, int64_t first,
                                  const at::Tensor& to) const {
  const Impl::Rows rows = impl_->find_rows(name, first, to.size(0));
  RETORT_CHECK(to.is_cpu() && to.is_contiguous() &&
               to.sizes().slice(1) == at::IntArrayRef(rows.entry.shape).slice(1))
      << name << " is read into " << to.sizes();
  // LibTorch's own copy writes new memory faster than the C library's does.
  if (rows.shard.saved && to.scalar_type() == rows.entry.dtype)
    rows.shard.copy(rows.begin, rows.end, static_cast<std::byte*>(to.mutable_data_ptr()),
                    CopyTo::kNewMemory);
  else
    rows.shard.convert(rows.entry.dtype, rows.begin, rows.end, to);
}

std::vector<int64_t> SafetensorsReader::shape(const std::string& name) const {
  const auto& [key, shard] = impl_->find(name);
  return shard->header.tensors.at(key).shape;
}

at::ScalarType SafetensorsReader::dtype(const std::string& name) const {
  const auto& [key, shard] = impl_->find(name);
  return shard->header.tensors.at(key).dtype;
}

const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return impl_->metadata;
}
bool SafetensorsReader::sharded() const { return impl_->sharded; }
uint64_t SafetensorsReader::largest_shard_bytes() const { return impl_->largest_shard_bytes; }

// Checks the shape of a piece against that of its tensor, and returns the piece's runs in it.
SliceRuns SafetensorsReader::Impl::runs_of(const parallel::TensorPiece& piece) const {
  const auto& [key, shard] = find(piece.name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  if (entry.shape != piece.shape) {
    std::ostringstream text;
    text << shard->file->path().string() << ": tensor '" << piece.name << "' has shape "
         << at::IntArrayRef(entry.shape) << ", expected " << at::IntArrayRef(piece.shape);
    throw Error(ErrorCode::kMismatch, text.str()).with("tensor", piece.name);
  }
  return slice_runs(piece);
}

namespace {

// Holds some runs of a piece that lie close together in the file.
struct RunBatch {
  struct Run {
    uint64_t begin;  // in the file
    size_t to;       // in the piece
    size_t bytes;
  };
  uint64_t begin() const { return runs.front().begin; }
  uint64_t end() const { return runs.back().begin + runs.back().bytes; }
  std::vector<Run> runs;
};

// Gathers runs into batches of a MiB for each thread, so that what was compared is copied while it
// is in a cache.
template <class Use>
void for_batches(const TensorEntry& entry, const SliceRuns& runs,
                 const parallel::TensorPiece& piece, const Use& use) {
  const size_t size = c10::elementSize(entry.dtype);
  const uint64_t most = to_size(at::get_num_threads()) * FileChecksum::kBlockBytes;
  RunBatch batch;

  // A run joins the batch before it if both fit, and if no more than a block lies between them.
  runs.visit(piece.begin, piece.values.numel(), [&](int64_t whole, int64_t own, int64_t length) {
    const uint64_t begin = entry.begin + to_size(whole) * size;
    const size_t bytes = to_size(length) * size;
    const bool joins = !batch.runs.empty() && begin >= batch.begin() &&
                       begin + bytes <= batch.begin() + most &&
                       begin <= batch.end() + FileChecksum::kBlockBytes;
    if (!joins && !batch.runs.empty()) {
      use(batch);
      batch.runs.clear();
    }
    batch.runs.push_back({begin, to_size(own) * size, bytes});
  });
  if (!batch.runs.empty()) use(batch);
}

// Copies values of the dtype of the file, without any LibTorch operation.
void copy_piece(const SafetensorsShard& shard, const TensorEntry& entry, const SliceRuns& runs,
                const parallel::TensorPiece& piece) {
  auto* const to = static_cast<std::byte*>(piece.values.mutable_data_ptr());
  if (runs.contiguous(piece.begin, piece.values.numel())) {
    const uint64_t begin =
        entry.begin + to_size(runs.place(piece.begin)) * c10::elementSize(entry.dtype);
    shard.copy(begin, begin + piece.values.nbytes(), to, CopyTo::kUsedMemory);
    return;
  }
  for_batches(entry, runs, piece, [&](const RunBatch& batch) {
    shard.check(batch.begin(), batch.end());
    for (const RunBatch::Run& run : batch.runs)
      std::memcpy(to + run.to, shard.file->bytes().data() + run.begin, run.bytes);
  });
}

// Reads into another dtype or device, to which LibTorch converts.
void convert_piece(const SafetensorsShard& shard, const TensorEntry& entry, const SliceRuns& runs,
                   const parallel::TensorPiece& piece) {
  for_batches(entry, runs, piece,
              [&](const RunBatch& batch) { shard.check(batch.begin(), batch.end()); });
  const at::NoGradGuard no_grad;
  const at::Tensor flat =
      shard.view(entry.dtype, entry.shape, entry.begin, entry.end).reshape({-1});
  runs.visit(piece.begin, piece.values.numel(), [&](int64_t whole, int64_t own, int64_t length) {
    piece.values.narrow(0, own, length).copy_(flat.narrow(0, whole, length));
  });
}

}  // namespace

void SafetensorsReader::read_piece(parallel::TensorPiece& piece) const {
  const SliceRuns runs = impl_->runs_of(piece);
  if (piece.values.numel() == 0) return;
  const auto& [key, shard] = impl_->find(piece.name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  if (piece.values.scalar_type() == entry.dtype && piece.values.is_cpu())
    copy_piece(*shard, entry, runs, piece);
  else
    convert_piece(*shard, entry, runs, piece);
}

void write_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_atomically(file.parent_path(), file.filename().string(),
                   SafetensorsLayout(infos_of(tensors), metadata), tensors);
}

void write_safetensors_folder(const std::filesystem::path& folder, const NamedTensors& tensors,
                              const SafetensorsWriteOptions& options) {
  const SafetensorsFiles files = SafetensorsFiles::model(infos_of(tensors), options);
  for (const auto& [name, layout] : files.files)
    write_atomically(folder, name, layout, tensors);
  if (!files.index.empty())
    write_file_atomically(folder / "model.safetensors.index.json", files.index);
}

}  // namespace retort::models
