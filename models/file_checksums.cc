#include "models/file_checksums.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "base/placed_checksum.h"
#include "base/sizes.h"

namespace retort::models {
namespace fs = std::filesystem;
namespace {

constexpr int kFormat = 1;
constexpr const char* kDamagedKey = "damaged";
// What the file held before it had checksums. Whoever writes it there again has the checkpoint
// taken as it is.
constexpr std::string_view kWithoutChecksums = "complete\n";

std::string hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

uint64_t from_hexadecimal(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, 16);
  if (error != std::errc() || rest != end || text.size() != 16)
    throw std::invalid_argument("'" + text + "' is no checksum");
  return number;
}

uint64_t blocks_of(uint64_t bytes) {
  return (bytes + FileChecksum::kBlockBytes - 1) / FileChecksum::kBlockBytes;
}

FileChecksums parse_checksums(const nlohmann::json& files) {
  FileChecksums parsed;
  for (const auto& [name, file] : files.items()) {
    const uint64_t bytes = file.at("bytes");
    const nlohmann::json& blocks = file.at("blocks");
    if (fs::path(name).is_absolute() || name.find("..") != std::string::npos)
      throw std::invalid_argument("'" + name + "' is no file of the checkpoint");
    // Before room is made for them.
    if (!blocks.is_array() || blocks.size() != blocks_of(bytes))
      throw std::invalid_argument("'" + name + "' has not one checksum for each MiB");
    FileChecksum checksum(bytes);
    for (size_t i = 0; i < blocks.size(); ++i)
      checksum.blocks[i] = from_hexadecimal(blocks[i].get<std::string>());
    parsed.emplace(name, std::move(checksum));
  }
  return parsed;
}

bool is_tensor_file(const std::string& name) { return name.ends_with(".safetensors"); }

void check_size(const fs::path& file, uint64_t size, const FileChecksum& saved) {
  if (size == saved.bytes) return;
  throw damage(file, "it has " + std::to_string(size) + " bytes, and was saved with " +
                         std::to_string(saved.bytes));
}

}  // namespace

FileChecksum::FileChecksum(uint64_t file_bytes)
    : bytes(file_bytes), blocks(blocks_of(file_bytes)) {}

void FileChecksum::add(std::span<const std::byte> part, uint64_t offset) {
  while (!part.empty()) {
    const uint64_t left = kBlockBytes - offset % kBlockBytes;
    const auto here = part.first(std::min<size_t>(part.size(), left));
    blocks.at(offset / kBlockBytes) += placed_checksum64(here, offset);
    part = part.subspan(here.size());
    offset += here.size();
  }
}

std::string write_checksums(const FileChecksums& files) {
  nlohmann::ordered_json listed = nlohmann::ordered_json::object();
  for (const auto& [name, checksum] : files) {
    nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
    for (const uint64_t block : checksum.blocks)
      blocks.push_back(hexadecimal(block));
    listed[name] = {{"bytes", checksum.bytes}, {"blocks", std::move(blocks)}};
  }

  const std::string text = listed.dump();
  const uint64_t own = checksum64(std::as_bytes(std::span(text)));
  const nlohmann::ordered_json all = {
      {"format", kFormat}, {"checksum", hexadecimal(own)}, {"files", std::move(listed)}};
  return all.dump() + "\n";
}

std::optional<FileChecksums> read_checksums(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kCompleteFile;
  if (!fs::exists(path)) return std::nullopt;
  const std::string text = read_file(path);
  if (text == kWithoutChecksums) return std::nullopt;

  int format = 0;
  FileChecksums files;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    format = json.at("format");
    if (format == kFormat) files = parse_checksums(json.at("files"));
  } catch (const std::exception& e) {
    throw damage(path, std::string("it does not hold checksums: ") + e.what());
  }
  if (format > kFormat)
    throw Error(ErrorCode::kMismatch, path.string() + " has format " + std::to_string(format) +
                                          ", which a later version wrote; this one knows " +
                                          std::to_string(kFormat));
  // A byte of it that changed shows, whichever it is.
  if (write_checksums(files) != text) throw damage(path, "its own checksum is another one");
  return files;
}

FileChecksum checksum_of_file(const fs::path& file) {
  const MappedFile mapped(file);
  FileChecksum checksum(mapped.bytes().size());
  checksum.add(mapped.bytes(), 0);
  return checksum;
}

Error damage(const fs::path& file, const std::string& what) {
  return Error(ErrorCode::kCorrupt, file.string() + " is not what was saved: " + what +
                                        "; disk, memory or network damaged it, or somebody "
                                        "changed it")
      .with(kDamagedKey, file.string());
}

bool is_damage(const Error& error) {
  return std::any_of(error.context().begin(), error.context().end(),
                     [](const auto& pair) { return pair.first == kDamagedKey; });
}

std::unique_ptr<BlockCheck> BlockCheck::of(const MappedFile& file) {
  // A checkpoint's weights stand in it, the optimizer's state in its folder `state`.
  fs::path checkpoint = file.path().parent_path();
  std::string name = file.path().filename().string();
  if (checkpoint.filename() == "state") {
    checkpoint = checkpoint.parent_path();
    name = "state/" + name;
  }
  const std::optional<FileChecksums> files = read_checksums(checkpoint);
  if (!files || !files->contains(name)) return nullptr;
  return std::make_unique<BlockCheck>(file, files->at(name));
}

BlockCheck::BlockCheck(const MappedFile& file, FileChecksum saved)
    : file_(file), saved_(std::move(saved)), known_(saved_.blocks.size()) {
  check_size(file.path(), file.bytes().size(), saved_);
}

void BlockCheck::check(uint64_t begin, uint64_t end) {
  constexpr uint64_t kBytes = FileChecksum::kBlockBytes;
  std::vector<int64_t> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (uint64_t block = begin / kBytes; block < blocks_of(std::min(end, saved_.bytes)); ++block)
      if (!known_[block]) wanted.push_back(to_int64(block));
  }

  // Two threads may compare the same block, which harms nobody.
  std::vector<char> right(wanted.size(), 0);
  at::parallel_for(0, to_int64(wanted.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const uint64_t offset = static_cast<uint64_t>(wanted[to_size(i)]) * kBytes;
      const uint64_t size = std::min(kBytes, saved_.bytes - offset);
      const uint64_t sum = placed_checksum64(file_.bytes().subspan(offset, size), offset);
      right[to_size(i)] = sum == saved_.blocks[offset / kBytes] ? 1 : 0;
    }
  });

  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto block = static_cast<uint64_t>(wanted[i]);
    if (right[i] == 0)
      throw damage(file_.path(), "the checksum of its bytes " + std::to_string(block * kBytes) +
                                     " to " +
                                     std::to_string(std::min((block + 1) * kBytes, saved_.bytes)) +
                                     " is another one");
    known_[block] = true;
  }
}

bool check_small_files(const fs::path& checkpoint) {
  const std::optional<FileChecksums> files = read_checksums(checkpoint);
  if (!files) return false;
  for (const auto& [name, saved] : *files) {
    const fs::path path = checkpoint / name;
    std::error_code failed;
    if (!fs::is_regular_file(path, failed)) throw damage(path, "it is missing");
    const MappedFile file(path);
    BlockCheck check(file, saved);
    if (!is_tensor_file(name)) check.check(0, saved.bytes);
  }
  return true;
}

}  // namespace retort::models
