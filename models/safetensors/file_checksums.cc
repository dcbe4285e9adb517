#include "models/safetensors/file_checksums.h"

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
#include "base/sizes.h"

namespace retort::models {
namespace fs = std::filesystem;
namespace {

constexpr int kFormat = 1;
constexpr const char* kDamagedKey = "damaged";
// In the text of damage() the named bytes follow these words; named_bytes() looks for them.
constexpr std::string_view kBytesOf = "the checksum of its bytes ";

// Before it had checksums the file held "complete". Whoever writes that there again, or makes it
// empty, by whatever editor, has the checkpoint taken as it is.
bool is_without_checksums(const std::string& text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  return end == std::string::npos || text.substr(0, end + 1) == "complete";
}

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
    // The count is checked before memory is taken for it.
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

// Tells whether a run goes on with what is in the file. What the others hold it has from its recipe
// and the model.
bool is_needed(const std::string& name) {
  return name.starts_with("state/") || is_tensor_file(name) ||
         name.ends_with(".safetensors.index.json");
}

// Tells whether a run must be able to read the file, whatever somebody changed in it.
bool is_config(const std::string& name) {
  return name == "config.json" || name == "adapter_config.json";
}

void check_size(const fs::path& file, uint64_t size, const FileChecksum& saved) {
  if (size == saved.bytes) return;
  throw damage(file, "it has " + std::to_string(size) + " bytes, and was saved with " +
                         std::to_string(saved.bytes));
}

Error wrong_block(const fs::path& file, uint64_t begin, const FileChecksum& saved) {
  const uint64_t end = std::min(begin + FileChecksum::kBlockBytes, saved.bytes);
  return damage(file, std::string(kBytesOf) + std::to_string(begin) + " to " + std::to_string(end) +
                          " is another one");
}

void compare_text(const fs::path& file, const std::optional<std::string>& text,
                  const FileChecksum& saved) {
  if (!text) throw damage(file, "it is missing");
  check_size(file, text->size(), saved);
  FileChecksum now(text->size());
  now.add(std::as_bytes(std::span(*text)), 0);
  for (size_t i = 0; i < saved.blocks.size(); ++i)
    if (now.blocks[i] != saved.blocks[i])
      throw wrong_block(file, i * FileChecksum::kBlockBytes, saved);
}

MappedFile map_tensors(const fs::path& file) {
  if (!is_file_there(file)) throw damage(file, "it is missing");
  try {
    return MappedFile(file);
  } catch (const Error& e) {
    throw Error(ErrorCode::kUnavailable, e.message(), e.origin(), e.context());
  }
}

// Returns the bytes that a message about damage names; all of the file if it names none.
std::pair<uint64_t, uint64_t> named_bytes(const std::string& message, uint64_t file_bytes) {
  const std::pair<uint64_t, uint64_t> all(0, file_bytes);
  const size_t at = message.find(kBytesOf);
  if (at == std::string::npos) return all;
  uint64_t begin = 0;
  const char* first = message.data() + at + kBytesOf.size();
  if (std::from_chars(first, message.data() + message.size(), begin).ec != std::errc()) return all;
  if (begin >= file_bytes) return all;
  return {begin, std::min(begin + FileChecksum::kBlockBytes, file_bytes)};
}

// Compares a file in parts, so that damage near the beginning of a large one is known soon.
void compare_named(const fs::path& file, const FileChecksum& saved, const std::string& message) {
  constexpr uint64_t kPart = 256 * FileChecksum::kBlockBytes;
  const MappedFile mapped = map_tensors(file);
  BlockCheck check(mapped, saved);
  const auto [begin, end] = named_bytes(message, saved.bytes);
  for (uint64_t at = begin; at < end; at += kPart)
    check.check(at, std::min(at + kPart, end));
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

  // The list has a checksum of its own, so that damage to it is not taken for damage to the files.
  const std::string text = listed.dump();
  const uint64_t own = checksum64(std::as_bytes(std::span(text)));
  const nlohmann::ordered_json all = {
      {"format", kFormat}, {"checksum", hexadecimal(own)}, {"files", std::move(listed)}};
  return all.dump() + "\n";
}

std::optional<FileChecksums> read_checksums(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kCompleteFile;
  const std::optional<std::string> found = read_file_if_there(path);
  if (!found || is_without_checksums(*found)) return std::nullopt;
  const std::string& text = *found;

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
  // The text is compared as a whole, so that a changed byte shows, whichever it is.
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
  // The weights lie in the checkpoint's folder, the state of the optimizer in its folder `state`.
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

std::span<const std::byte> BlockCheck::bytes_of(uint64_t block) const {
  const uint64_t begin = block * FileChecksum::kBlockBytes;
  return file_.bytes().subspan(begin, std::min(FileChecksum::kBlockBytes, saved_.bytes - begin));
}

bool BlockCheck::knows(uint64_t block) const {
  const std::lock_guard lock(mutex_);
  return known_.at(block);
}

bool BlockCheck::compare(uint64_t block, uint64_t checksum) {
  if (checksum != saved_.blocks.at(block)) return false;
  const std::lock_guard lock(mutex_);
  known_[block] = true;
  return true;
}

void BlockCheck::check(uint64_t begin, uint64_t end) {
  constexpr uint64_t kBytes = FileChecksum::kBlockBytes;
  std::vector<uint64_t> wanted;
  for (uint64_t block = begin / kBytes; block < blocks_of(std::min(end, saved_.bytes)); ++block)
    if (!knows(block)) wanted.push_back(block);

  // The blocks are compared without the lock. Two threads may compare the same one, which harms
  // nobody.
  std::vector<char> right(wanted.size(), 0);
  at::parallel_for(0, to_int64(wanted.size()), 1, [&](int64_t first, int64_t last) {
    for (size_t i = to_size(first); i < to_size(last); ++i)
      right[i] = compare(wanted[i], placed_checksum64(bytes_of(wanted[i]), wanted[i] * kBytes));
  });

  const auto wrong = std::find(right.begin(), right.end(), 0);
  if (wrong == right.end()) return;
  throw wrong_block(file_.path(), wanted[to_size(wrong - right.begin())] * kBytes, saved_);
}

void BlockCheck::check_block(uint64_t block) {
  if (knows(block)) return;
  const uint64_t begin = block * FileChecksum::kBlockBytes;
  if (!compare(block, placed_checksum64(bytes_of(block), begin)))
    throw wrong_block(file_.path(), begin, saved_);
}

void BlockCheck::copy_block(uint64_t block, std::byte* to, CopyTo kind) {
  const uint64_t begin = block * FileChecksum::kBlockBytes;
  if (!compare(block, copy_with_placed_checksum64(to, bytes_of(block), begin, kind)))
    throw wrong_block(file_.path(), begin, saved_);
}

SmallFiles check_small_files(const fs::path& checkpoint) {
  const std::optional<FileChecksums> files = read_checksums(checkpoint);
  if (!files) return {.has_checksums = false, .changed = {}};
  SmallFiles found;
  for (const auto& [name, saved] : *files) {
    const fs::path path = checkpoint / name;
    if (is_tensor_file(name)) {
      check_size(path, map_tensors(path).bytes().size(), saved);
      continue;
    }

    // A changed file ends the check only if the run needs it as it was saved, or if it is a config
    // that cannot be read any more. The caller is told of the others.
    std::optional<std::string> text;
    try {
      text = read_file_if_there(path);
      compare_text(path, text, saved);
    } catch (const Error& error) {
      const bool is_readable = !is_config(name) || (text && nlohmann::json::accept(*text));
      if (is_needed(name) || !is_readable) throw;
      found.changed.push_back(error.message());
    }
  }
  return found;
}

bool is_still_damaged(const fs::path& checkpoint, const std::string& message) {
  try {
    const std::optional<FileChecksums> files = read_checksums(checkpoint);
    if (!files) return true;
    // The longest name counts, because "model.safetensors" is the beginning of the name of its
    // index, too.
    const std::pair<const std::string, FileChecksum>* named = nullptr;
    for (const auto& file : *files) {
      if (message.find((checkpoint / file.first).string()) == std::string::npos) continue;
      if (!named || file.first.size() > named->first.size()) named = &file;
    }
    if (!named) return message.find((checkpoint / kCompleteFile).string()) == std::string::npos;

    const auto& [name, saved] = *named;
    if (is_tensor_file(name))
      compare_named(checkpoint / name, saved, message);
    else
      compare_text(checkpoint / name, read_file_if_there(checkpoint / name), saved);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return true;
  }
  return false;
}

}  // namespace retort::models
