#include "models/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
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
#include "models/file_checksums.h"
#include "models/model_folder.h"
#include "models/safetensors_header.h"
#include "models/safetensors_writer.h"
#include "models/tensor_runs.h"

namespace retort::models {
namespace {

struct Shard {
  explicit Shard(const std::filesystem::path& path)
      : file(std::make_shared<MappedFile>(path)), saved(BlockCheck::of(*file)) {
    check_header();
    header = parse_safetensors_header(file->text(), path);
  }
  // Its length first, which says what else belongs to it.
  void check_header() const {
    check(0, sizeof(uint64_t));
    uint64_t length = 0;
    if (file->bytes().size() < sizeof length) return;
    std::memcpy(&length, file->bytes().data(), sizeof length);
    check(0, sizeof length + std::min<uint64_t>(length, file->bytes().size()));
  }
  void check(uint64_t begin, uint64_t end) const {
    if (saved && begin < end) saved->check(begin, end);
  }

  std::shared_ptr<MappedFile> file;
  std::unique_ptr<BlockCheck> saved;  // null: it has no checksums
  SafetensorsHeader header;
};

// Bytes [begin, end) of the file, which the tensor keeps mapped. A copy where they are not aligned.
at::Tensor tensor_at(const Shard& shard, at::ScalarType dtype, const std::vector<int64_t>& shape,
                     uint64_t begin, uint64_t end) {
  const auto options = at::TensorOptions().dtype(dtype);
  const std::byte* data = shard.file->bytes().data() + begin;
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) != 0) {
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, end - begin);
    return copy;
  }
  // The mapping is read-only; at::from_blob has no const overload.
  return at::from_blob(
      const_cast<std::byte*>(data), shape, [file = shard.file](void*) {}, options);
}

[[noreturn]] void corrupt(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, file.string() + ": " + what).with("file", file.string());
}

// tensor name -> shard file name, from model.safetensors.index.json
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

// One of `files`, under a temporary name first.
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
  std::map<std::string, std::shared_ptr<Shard>> tensors;  // by tensor name
  std::map<std::string, std::string> metadata;
  bool sharded = false;
  uint64_t largest_shard_bytes = 0;

  SliceRuns runs_of(const parallel::TensorPiece& piece) const;
  // Not compared with its checksums.
  at::Tensor view(const std::string& name) const;
  // Compares the elements of a piece.
  void check(const parallel::TensorPiece& piece, const SliceRuns& runs) const;

  void open(const std::filesystem::path& file,
            const std::function<bool(const std::string&)>& wanted) {
    auto shard = std::make_shared<Shard>(file);
    if (tensors.empty()) metadata = shard->header.metadata;
    uint64_t bytes = 0;
    for (const auto& [name, entry] : shard->header.tensors) {
      bytes += entry.end - entry.begin;
      if (wanted(name)) tensors[name] = shard;
    }
    largest_shard_bytes = std::max(largest_shard_bytes, bytes);
  }
  void open_shards(const std::filesystem::path& folder);

  const std::pair<const std::string, std::shared_ptr<Shard>>& find(const std::string& name) const {
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

  // Of each shard the tensors that the index places there: another shard may have them too.
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
  const std::shared_ptr<Shard> shard = impl_->find(from).second;
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
  return impl_->view(name);
}

at::Tensor SafetensorsReader::rows(const std::string& name, int64_t first, int64_t count) const {
  const auto& [key, shard] = impl_->find(name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  std::vector<int64_t> shape = entry.shape;
  RETORT_CHECK(!shape.empty() && first >= 0 && count >= 0 && first + count <= shape[0])
      << name << " has no rows " << first << " to " << first + count;
  const uint64_t row =
      shape[0] == 0 ? 0 : (entry.end - entry.begin) / static_cast<uint64_t>(shape[0]);
  const uint64_t begin = entry.begin + static_cast<uint64_t>(first) * row;
  const uint64_t end = begin + static_cast<uint64_t>(count) * row;
  shard->check(begin, end);
  shape[0] = count;
  return tensor_at(*shard, entry.dtype, shape, begin, end);
}

at::Tensor SafetensorsReader::Impl::view(const std::string& name) const {
  const auto& [key, shard] = find(name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  return tensor_at(*shard, entry.dtype, entry.shape, entry.begin, entry.end);
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

// The piece's shape is checked against the tensor's.
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

void SafetensorsReader::Impl::check(const parallel::TensorPiece& piece,
                                    const SliceRuns& runs) const {
  const auto& [key, shard] = find(piece.name);
  if (!shard->saved) return;
  const TensorEntry& entry = shard->header.tensors.at(key);
  const uint64_t size = c10::elementSize(entry.dtype);
  // Runs that lie close together are one range, so that its blocks are compared by all threads.
  uint64_t begin = 0, end = 0;
  runs.visit(piece.begin, piece.values.numel(), [&](int64_t whole, int64_t, int64_t length) {
    const uint64_t from = entry.begin + static_cast<uint64_t>(whole) * size;
    if (from < begin || from > end + FileChecksum::kBlockBytes) {
      shard->check(begin, end);
      begin = from;
    }
    end = from + static_cast<uint64_t>(length) * size;
  });
  shard->check(begin, end);
}

at::Tensor SafetensorsReader::get(const parallel::TensorPiece& wanted) const {
  const SliceRuns runs = impl_->runs_of(wanted);
  const int64_t count = wanted.values.numel();
  const at::Tensor whole = impl_->view(wanted.name);
  if (runs.contiguous(wanted.begin, count)) {
    impl_->check(wanted, runs);
    return whole.reshape({-1}).narrow(0, runs.place(wanted.begin), count);
  }
  parallel::TensorPiece copy = wanted;
  copy.values = at::empty({count}, whole.options());
  read_piece(copy);
  return copy.values;
}

void SafetensorsReader::read_piece(parallel::TensorPiece& piece) const {
  const SliceRuns runs = impl_->runs_of(piece);
  const auto& [key, shard] = impl_->find(piece.name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  const int64_t count = piece.values.numel();
  impl_->check(piece, runs);

  // Values of the file's dtype are copied as bytes, without any LibTorch operation.
  if (piece.values.scalar_type() == entry.dtype && piece.values.is_cpu()) {
    const size_t size = c10::elementSize(entry.dtype);
    const std::byte* from = shard->file->bytes().data() + entry.begin;
    std::byte* to = count == 0 ? nullptr : static_cast<std::byte*>(piece.values.mutable_data_ptr());
    runs.visit(piece.begin, count, [&](int64_t whole, int64_t own, int64_t length) {
      std::memcpy(to + static_cast<size_t>(own) * size, from + static_cast<size_t>(whole) * size,
                  static_cast<size_t>(length) * size);
    });
    return;
  }

  // Another dtype or device: LibTorch converts.
  const at::NoGradGuard no_grad;
  const at::Tensor flat = impl_->view(piece.name).reshape({-1});
  runs.visit(piece.begin, count, [&](int64_t whole, int64_t own, int64_t length) {
    piece.values.narrow(0, own, length).copy_(flat.narrow(0, whole, length));
  });
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
