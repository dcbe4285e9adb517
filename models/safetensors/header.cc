#include "models/safetensors/header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json_text.h"

namespace retort::models {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's reference implementation

const std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
    {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
    {"U8", at::kByte},    {"BOOL", at::kBool}};

[[noreturn]] void corrupt(const std::filesystem::path& path, const std::string& tensor,
                          const std::string& what) {
  std::string text =
      path.string() + ": " + (tensor.empty() ? "" : "tensor '" + tensor + "': ") + what;
  Error error(ErrorCode::kCorrupt, std::move(text));
  error = error.with("file", path.string());
  throw tensor.empty() ? error : error.with("tensor", tensor);
}

uint64_t natural(const json& value, const std::filesystem::path& path, const std::string& tensor,
                 const char* what) {
  if (!value.is_number_unsigned())
    corrupt(path, tensor, std::string(what) + " holds something that is not a natural number");
  return value.get<uint64_t>();
}

at::ScalarType parse_dtype_name(const json& dtype, const std::string& name,
                                const std::filesystem::path& path) {
  const auto known = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                  [&](const auto& candidate) { return dtype == candidate.first; });
  if (known == std::end(kDtypes)) corrupt(path, name, "unknown dtype " + dtype.dump());
  return known->second;
}

TensorEntry parse_entry(const json& value, const std::string& name,
                        const std::filesystem::path& path, uint64_t data_start,
                        uint64_t data_size) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    corrupt(path, name, "expected an object with dtype, shape and data_offsets");
  }
  TensorEntry entry;
  entry.dtype = parse_dtype_name(value["dtype"], name, path);
  const json& shape = value["shape"];
  const json& offsets = value["data_offsets"];
  if (!shape.is_array() || shape.size() > 8)
    corrupt(path, name, "the shape is not a list of at most 8 sizes");
  if (!offsets.is_array() || offsets.size() != 2) corrupt(path, name, "data_offsets is not a pair");

  // The product of the sizes is checked before it is formed: it must not overflow.
  uint64_t bytes = c10::elementSize(entry.dtype);
  for (const json& dim : shape) {
    const uint64_t size = natural(dim, path, name, "the shape");
    if (size > uint64_t{1} << 48 ||
        (size != 0 && bytes > std::numeric_limits<int64_t>::max() / size)) {
      corrupt(path, name, "the shape " + shape.dump() + " overflows");
    }
    bytes *= size;
    entry.shape.push_back(static_cast<int64_t>(size));
  }

  // The range must lie in the file and have the size that shape and dtype need.
  const uint64_t begin = natural(offsets[0], path, name, "data_offsets");
  const uint64_t end = natural(offsets[1], path, name, "data_offsets");
  if (begin > end || end > data_size) {
    corrupt(path, name,
            "data_offsets " + offsets.dump() + " lie outside the " + std::to_string(data_size) +
                " bytes of data; the file may be truncated");
  }
  if (end - begin != bytes) {
    corrupt(path, name,
            "data_offsets span " + std::to_string(end - begin) + " bytes, shape and dtype need " +
                std::to_string(bytes));
  }

  // Offsets in the file count from the end of the header, ours from the start of the file.
  entry.begin = data_start + begin;
  entry.end = data_start + end;
  return entry;
}

// The data of all tensors must cover the file's data exactly once.
void check_layout(const std::map<std::string, TensorEntry>& tensors,
                  const std::filesystem::path& path, uint64_t data_start, uint64_t file_size) {
  std::vector<std::pair<const TensorEntry*, const std::string*>> order;
  for (const auto& [name, entry] : tensors)
    order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  uint64_t at = data_start;
  for (const auto& [entry, name] : order) {
    if (entry->begin < at) corrupt(path, *name, "its data overlaps another tensor's");
    if (entry->begin > at) corrupt(path, *name, "unused bytes stand before its data");
    at = entry->end;
  }
  if (at != file_size) {
    corrupt(path, "",
            std::to_string(file_size - at) + " bytes after the last tensor belong to none");
  }
}

json parse_json(std::string_view text, const std::filesystem::path& path) {
  std::set<std::string> seen;
  std::string duplicate;
  // A JSON parser keeps one of two equal keys without a word, so tensors that are named twice are
  // looked for here.
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 &&
        !seen.insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  if (json_nesting(text) > kMaxJsonNesting) corrupt(path, "", "the header is nested too deeply");
  json header;
  try {
    header = json::parse(text, watch);
  } catch (const json::exception& e) {
    corrupt(path, "", std::string("the header is not JSON: ") + e.what());
  }
  if (!duplicate.empty()) corrupt(path, duplicate, "it appears twice in the header");
  if (!header.is_object()) corrupt(path, "", "the header is not a JSON object");
  return header;
}

// Tells whether an object stands behind the length: then the file has a header, whatever its length
// looks like.
bool begins_with_object(std::string_view file) { return file.size() > 8 && file[8] == '{'; }

// A file begins with its header's length as 8 bytes, little-endian.
uint64_t header_length(std::string_view file, const std::filesystem::path& path) {
  const FileKind kind = file_kind(file);
  if (kind != FileKind::kUnknown && kind != FileKind::kSafetensors && !begins_with_object(file))
    corrupt(path, "", description(kind) + "; expected a safetensors file");
  if (file.size() < 8) corrupt(path, "", "shorter than the 8 bytes of the header's length");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(file[static_cast<size_t>(i)]);
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    corrupt(path, "",
            "the header claims " + std::to_string(length) + " bytes, the file has " +
                std::to_string(file.size() - 8) + " after the length (limit " +
                std::to_string(kMaxHeaderBytes) + "); the file may be truncated");
  }
  return length;
}

std::map<std::string, std::string> parse_metadata(const json& value,
                                                  const std::filesystem::path& path) {
  if (!value.is_object()) corrupt(path, "", "__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) corrupt(path, "", "__metadata__ holds something that is not a string");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view file,
                                           const std::filesystem::path& path) {
  const uint64_t length = header_length(file, path);
  const json parsed = parse_json(file.substr(8, length), path);
  const uint64_t data_start = 8 + length;
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value, path);
    } else {
      header.tensors.emplace(name,
                             parse_entry(value, name, path, data_start, file.size() - data_start));
    }
  }
  check_layout(header.tensors, path, data_start, file.size());
  return header;
}

std::string safetensors_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : kDtypes) {
    if (type == dtype) return name;
  }
  throw Error(ErrorCode::kInvalidArgument, "safetensors has no name for this dtype")
      .with("dtype", c10::toString(dtype));
}

}  // namespace retort::models
