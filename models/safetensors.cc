#include "models/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/safetensors_header.h"

namespace retort::models {
namespace {

struct Shard {
  explicit Shard(const std::filesystem::path& path)
      : file(std::make_shared<MappedFile>(path)), header(parse_safetensors_header(file->text(), path)) {}
  std::shared_ptr<MappedFile> file;
  SafetensorsHeader header;
};

[[noreturn]] void corrupt(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, file.string() + ": " + what).with("file", file.string());
}

// tensor name -> shard file name, from model.safetensors.index.json
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  std::map<std::string, std::string> map;
  nlohmann::json index;
  try {
    index = nlohmann::json::parse(read_file(path));
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
      corrupt(path, "the shard of tensor '" + name + "' is '" + shard + "', expected a file in the same folder");
    }
    map.emplace(name, shard);
  }
  return map;
}

struct Bytes {
  at::Tensor owner;  // contiguous, on the CPU
  std::string_view view() const {
    return {static_cast<const char*>(owner.const_data_ptr()), static_cast<size_t>(owner.nbytes())};
  }
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Widest elements first, then by name: every tensor is aligned, and the same tensors give the same bytes.
NamedTensors file_order(NamedTensors tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const size_t left = a.second.element_size(), right = b.second.element_size();
    return left != right ? left > right : a.first < b.first;
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    RETORT_CHECK(tensors[i].first != tensors[i - 1].first) << "tensor " << tensors[i].first << " is given twice";
  }
  return tensors;
}

std::string header_text(const NamedTensors& ordered, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : ordered) {
    const uint64_t end = offset + tensor.nbytes();
    header[name] = {{"dtype", safetensors_dtype_name(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

struct SafetensorsReader::Impl {
  std::map<std::string, std::shared_ptr<Shard>> tensors;  // by tensor name
  std::map<std::string, std::string> metadata;
  bool sharded = false;
  uint64_t largest_shard_bytes = 0;

  void open(const std::filesystem::path& file, const std::function<bool(const std::string&)>& wanted) {
    auto shard = std::make_shared<Shard>(file);
    if (tensors.empty()) metadata = shard->header.metadata;
    uint64_t bytes = 0;
    for (const auto& [name, entry] : shard->header.tensors) {
      bytes += entry.end - entry.begin;
      if (wanted(name)) tensors[name] = shard;
    }
    largest_shard_bytes = std::max(largest_shard_bytes, bytes);
  }

  const std::pair<const std::string, std::shared_ptr<Shard>>& find(const std::string& name) const {
    const auto it = tensors.find(name);
    if (it == tensors.end())
      throw Error(ErrorCode::kMismatch, "the checkpoint has no tensor '" + name + "'").with("tensor", name);
    return *it;
  }
};

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : impl_(std::make_shared<Impl>()) {
  if (!std::filesystem::is_directory(path)) {
    impl_->open(path, [](const std::string&) { return true; });
    return;
  }
  if (std::filesystem::exists(path / "model.safetensors")) {
    impl_->open(path / "model.safetensors", [](const std::string&) { return true; });
    return;
  }
  const std::filesystem::path index = path / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + ": neither model.safetensors nor model.safetensors.index.json is there")
        .with("folder", path.string());
  }
  impl_->sharded = true;
  const std::map<std::string, std::string> map = read_index(index);
  std::map<std::string, bool> files;
  for (const auto& [name, file] : map) files[file] = true;
  for (const auto& [file, unused] : files) {
    if (!std::filesystem::exists(path / file)) corrupt(index, "its shard '" + file + "' is missing");
    impl_->open(path / file, [&](const std::string& name) {
      const auto it = map.find(name);
      return it != map.end() && it->second == file;
    });
  }
  for (const auto& [name, file] : map) {
    if (!impl_->tensors.contains(name)) corrupt(path / file, "the index says that it holds tensor '" + name + "', it does not");
  }
}

bool SafetensorsReader::contains(const std::string& name) const { return impl_->tensors.contains(name); }

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : impl_->tensors) names.push_back(name);
  return names;
}

at::Tensor SafetensorsReader::get(const std::string& name) const {
  const auto& [key, shard] = impl_->find(name);
  const TensorEntry& entry = shard->header.tensors.at(key);
  const auto options = at::TensorOptions().dtype(entry.dtype);
  const std::byte* data = shard->file->bytes().data() + entry.begin;
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, entry.end - entry.begin);
    return copy;
  }
  // The mapping is read-only; at::from_blob has no const overload.
  return at::from_blob(
      const_cast<std::byte*>(data), entry.shape, [file = shard->file](void*) {}, options);
}

std::vector<int64_t> SafetensorsReader::shape(const std::string& name) const {
  const auto& [key, shard] = impl_->find(name);
  return shard->header.tensors.at(key).shape;
}

const std::map<std::string, std::string>& SafetensorsReader::metadata() const { return impl_->metadata; }
bool SafetensorsReader::sharded() const { return impl_->sharded; }
uint64_t SafetensorsReader::largest_shard_bytes() const { return impl_->largest_shard_bytes; }

void write_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const NamedTensors ordered = file_order(tensors);
  const std::string header = header_text(ordered, metadata);
  AtomicFile out(file);
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  out.write(length);
  out.write(header);
  for (const auto& [name, tensor] : ordered) {
    const Bytes bytes{tensor.detach().to(at::kCPU).contiguous()};
    if (!bytes.view().empty()) out.write(bytes.view());
  }
  out.commit();
}

void write_safetensors_folder(const std::filesystem::path& folder, const NamedTensors& tensors,
                              const SafetensorsWriteOptions& options) {
  std::vector<NamedTensors> shards(1);
  uint64_t in_shard = 0, total = 0, elements = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t bytes = tensor.nbytes();
    if (in_shard > 0 && in_shard + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().emplace_back(name, tensor);
    in_shard += bytes;
    total += bytes;
    elements += static_cast<uint64_t>(tensor.numel());
  }
  if (shards.size() == 1 && !options.always_index) {
    write_safetensors(folder / "model.safetensors", shards[0], options.metadata);
    return;
  }
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_parameters", elements}, {"total_size", total}};
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    write_safetensors(folder / name, shards[i], options.metadata);
    for (const auto& [tensor, value] : shards[i]) map[tensor] = name;
  }
  index["weight_map"] = map;
  write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace retort::models
