#include "recipes/run/metrics/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/host_name.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      // The polynomial is that of Castagnoli, its bits reversed.
      value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

template <class T>
void put_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>((value >> (8 * i)) & 0xff);
}

template <class T>
T get_little_endian(std::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

// Protobuf's wire format: varints, and fields as (number << 3 | type).
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, WireType type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::optional<uint64_t> take_varint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Returns the step of an Event (field 2); where it is absent -1, before every step.
int64_t step_of(std::string_view event) {
  while (!event.empty()) {
    const auto key = take_varint(event);
    if (!key) break;

    // The wire type says how long the value is that has to be skipped.
    size_t skip = 0;
    switch (*key & 7) {
      case kVarint: {
        const auto value = take_varint(event);
        if (!value) return -1;
        if (*key >> 3 == 2) return static_cast<int64_t>(*value);
        continue;
      }
      case kFixed64: skip = 8; break;
      case kFixed32: skip = 4; break;
      case kBytes: {
        const auto size = take_varint(event);
        if (!size) return -1;
        skip = *size;
        break;
      }
      default: return -1;
    }

    if (skip > event.size()) break;
    event.remove_prefix(skip);
  }
  return -1;
}

std::string event_prefix(double wall_time) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(wall_time));
  return event;
}

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Names a file that is not there yet.
fs::path new_event_file(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder " + folder.string() + ": " + failed.message());
  const std::string stem = "events.out.tfevents." +
                           std::to_string(static_cast<int64_t>(wall_time_now())) + "." +
                           host_name() + "." + std::to_string(::getpid());
  fs::path path;
  for (int i = 0; i == 0 || fs::exists(path); ++i)
    path = folder / (stem + "." + std::to_string(i));
  return path;
}

// Returns the records of `content` up to `step`, byte for byte, so that a resumed run goes on
// behind them. A record is a TFRecord: length (8 bytes), its checksum (4), data, its checksum (4).
// What comes after the first damaged one, as a killed process leaves it, is dropped.
std::string records_up_to(std::string_view content, int64_t step) {
  std::string kept;
  while (content.size() >= 16) {
    const auto length = get_little_endian<uint64_t>(content);
    if (get_little_endian<uint32_t>(content.substr(8)) != masked_crc32c(content.substr(0, 8)))
      break;
    if (length > content.size() - 16) break;
    const std::string_view data = content.substr(12, length);
    if (get_little_endian<uint32_t>(content.substr(12 + length)) != masked_crc32c(data)) break;
    if (step_of(data) <= step) kept += content.substr(0, 16 + length);
    content.remove_prefix(16 + length);
  }
  return kept;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char c : bytes)
    crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  // TFRecord masks its checksums as LevelDB does: a checksum over data that holds checksums would
  // be weak.
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::string event_record(std::string_view data) {
  std::string record;
  put_little_endian(record, static_cast<uint64_t>(data.size()));
  put_little_endian(record, masked_crc32c(record));
  record += data;
  put_little_endian(record, masked_crc32c(data));
  return record;
}

std::string scalar_event(double wall_time, int64_t step,
                         std::span<const std::pair<std::string, double>> scalars) {
  // An Event has its wall time in field 1, step in 2 and summary in 5; a summary has values in 1,
  // each with its tag in 1 and its number, a float, in 2.
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    put_bytes(entry, 1, tag);
    put_key(entry, 2, kFixed32);
    put_little_endian(entry, std::bit_cast<uint32_t>(static_cast<float>(value)));
    put_bytes(summary, 1, entry);
  }
  std::string event = event_prefix(wall_time);
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

std::string version_event(double wall_time) {
  std::string event = event_prefix(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

EventFile::EventFile(const fs::path& folder) : file_(new_event_file(folder)) {
  file_.append(event_record(version_event(wall_time_now())));
}

void EventFile::write(int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  file_.append(event_record(scalar_event(wall_time_now(), step, scalars)));
}

void cut_back_events(const fs::path& folder, int64_t step) {
  if (!fs::is_directory(folder)) return;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() &&
        entry.path().filename().string().find("tfevents") != std::string::npos)
      files.push_back(entry.path());
  for (const auto& path : files) {
    const std::string content = read_file(path);
    const std::string kept = records_up_to(content, step);
    if (kept.size() != content.size()) write_file_atomically(path, kept);
  }
}

}  // namespace retort::recipes
