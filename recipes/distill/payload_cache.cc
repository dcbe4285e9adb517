#include "recipes/distill/payload_cache.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>

#include "base/append_file.h"
#include "base/cache_key.h"
#include "base/checksum.h"
#include "base/error.h"

namespace retort::recipes {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPayloadSuffix = ".payloads";
constexpr std::array<char, 4> kRecordMagic{'R', 'T', 'P', 'C'};
constexpr uint64_t kSumBytes = 2 * sizeof(double);  // at the end of a body

struct RecordHead {
  std::array<char, 4> magic;
  uint32_t rows;
  uint64_t body_bytes;
  std::array<char, kContentKeyBytes> key;
  uint64_t check;
};
static_assert(sizeof(RecordHead) + kSumBytes == kPayloadRecordBytes);

// The check is over the body, and over what the head says of it.
uint64_t record_check(const RecordHead& head, std::span<const std::byte> body) {
  const auto said = std::as_bytes(std::span(&head, 1)).first(offsetof(RecordHead, check));
  return checksum64(body, checksum64(said));
}

fs::path records_folder(const fs::path& folder) { return folder / "payloads"; }

// Returns the head of a whole record at `offset`, or nullopt.
std::optional<RecordHead> head_at(std::span<const std::byte> bytes, size_t offset) {
  RecordHead head;
  if (bytes.size() - offset < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data() + offset, sizeof head);
  const bool fits = head.magic == kRecordMagic && head.body_bytes >= kSumBytes &&
                    head.body_bytes <= bytes.size() - offset - sizeof head;
  return fits ? std::optional(head) : std::nullopt;
}

std::span<const std::byte> body_of(std::span<const std::byte> bytes, size_t offset,
                                   const RecordHead& head) {
  return bytes.subspan(offset + sizeof head, head.body_bytes);
}

// Returns how many bytes, from the start, are whole records that hold what was written.
size_t whole_bytes(std::span<const std::byte> bytes) {
  size_t at = 0;
  while (const auto head = head_at(bytes, at)) {
    const auto body = body_of(bytes, at, *head);
    if (record_check(*head, body) != head->check) break;
    at += sizeof *head + body.size();
  }
  return at;
}

std::vector<int32_t> int32s_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kInt).contiguous();
  const auto* data = flat.const_data_ptr<int32_t>();
  return {data, data + flat.numel()};
}

// Returns rows of a tensor whose rows lie one after the other in host memory.
std::span<const std::byte> tensor_rows(const at::Tensor& tensor, int64_t first, int64_t count) {
  const auto bytes = tensor.nbytes() / static_cast<size_t>(std::max<int64_t>(1, tensor.size(0)));
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {data + bytes * static_cast<size_t>(first), bytes * static_cast<size_t>(count)};
}

}  // namespace

std::vector<WantedSequence> wanted_sequences(const at::Tensor& input_ids,
                                             const at::Tensor& cu_seqlens,
                                             const at::Tensor& positions) {
  const std::vector<int32_t> ids = int32s_of(input_ids), ends = int32s_of(cu_seqlens),
                             wanted = int32s_of(positions);
  std::vector<WantedSequence> sequences;
  size_t row = 0;
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    // Places are counted from the start of the sequence, so that its key is the same in every pack.
    const size_t first = row;
    std::vector<int32_t> places;
    for (; row < wanted.size() && wanted[row] < ends[s + 1]; ++row)
      places.push_back(wanted[row] - ends[s]);
    if (places.empty()) continue;

    const std::span<const int32_t> all(ids);
    const auto tokens =
        all.subspan(static_cast<size_t>(ends[s]), static_cast<size_t>(ends[s + 1] - ends[s]));
    sequences.push_back({.key = cache_key(places, tokens),
                         .first_row = static_cast<int64_t>(first),
                         .num_rows = static_cast<int64_t>(places.size())});
  }
  return sequences;
}

PayloadCache::PayloadCache(const fs::path& folder, const std::vector<PayloadFile>& files) {
  for (const PayloadFile& file : files) {
    const fs::path path = records_folder(folder) / file.name;
    if (file.bytes == 0) continue;
    if (!fs::exists(path) || fs::file_size(path) < static_cast<uintmax_t>(file.bytes))
      throw Error(ErrorCode::kCorrupt, path.string() + " is shorter than the " +
                                           std::to_string(file.bytes) +
                                           " bytes of the cache, or missing; write it anew");
    files_.push_back(std::make_shared<MappedFile>(path));
    // The manifest says how far the file belongs to the cache; what lies behind that is not looked
    // at.
    const auto bytes = files_.back()->bytes().first(static_cast<size_t>(file.bytes));
    for (size_t at = 0; at < bytes.size();) {
      const auto head = head_at(bytes, at);
      if (!head)
        throw Error(ErrorCode::kCorrupt, path.string() + " holds no payload at byte " +
                                             std::to_string(at) + "; write the cache anew");
      // Two ranks may have kept the same sequence: the first one counts.
      const auto [place, added] =
          places_.emplace(std::string(head->key.data(), kContentKeyBytes),
                          Place{.file = files_.size() - 1, .offset = at, .rows = head->rows});
      if (added) num_rows_ += place->second.rows;
      at += sizeof *head + head->body_bytes;
    }
  }
}

std::set<std::string> PayloadCache::keys() const {
  std::set<std::string> keys;
  for (const auto& [key, place] : places_)
    keys.insert(key);
  return keys;
}

void PayloadCache::read(const WantedSequence& sequence, roles::Payload& to) const {
  const auto found = places_.find(sequence.key);
  if (found == places_.end() || found->second.rows != sequence.num_rows)
    throw Error(ErrorCode::kMismatch, "a sequence with " + std::to_string(sequence.num_rows) +
                                          " targets is not in the cache of the teacher's payloads");
  const MappedFile& file = *files_[found->second.file];
  const size_t offset = found->second.offset;
  const RecordHead head = head_at(file.bytes(), offset).value();
  std::span<const std::byte> body = body_of(file.bytes(), offset, head);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kCorrupt, file.path().string() + " at byte " + std::to_string(offset) +
                                         " " + what + "; write the cache anew, or restore it");
  };
  // A damaged payload would be trained on without a sign, so each is checked as it is read.
  if (record_check(head, body) != head.check) refuse("does not hold what was written");

  const auto take = [&](size_t bytes) {
    if (body.size() < bytes) refuse("is shorter than a payload of its kind");
    const auto taken = body.first(bytes);
    body = body.subspan(bytes);
    return taken;
  };
  for (at::Tensor* tensor : to.row_tensors()) {
    if (!tensor->defined()) continue;
    const auto rows = tensor_rows(*tensor, sequence.first_row, sequence.num_rows);
    const auto bytes = take(rows.size());
    std::memcpy(const_cast<std::byte*>(rows.data()), bytes.data(), bytes.size());
  }

  // The sums over the rows stand behind these.
  std::array<double, 2> sums;
  const auto bytes = take(kSumBytes);
  std::memcpy(sums.data(), bytes.data(), bytes.size());
  if (!body.empty()) refuse("is longer than a payload of its kind");
  to.masked_mass_sum += sums[0];
  to.tail_bound_sum += sums[1];
}

PayloadWriter::PayloadWriter(const fs::path& folder, int64_t rank)
    : path_(records_folder(folder) /
            ("rank-" + std::to_string(rank) + std::string(kPayloadSuffix))) {
  fs::create_directories(path_.parent_path());
  fd_ = open_for_append(path_);
}

PayloadWriter::~PayloadWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void PayloadWriter::add(const WantedSequence& sequence, roles::Payload& from) {
  std::string body;
  for (at::Tensor* tensor : from.row_tensors()) {
    if (!tensor->defined()) continue;
    const auto rows = tensor_rows(*tensor, sequence.first_row, sequence.num_rows);
    body.append(reinterpret_cast<const char*>(rows.data()), rows.size());
  }

  // The answer has one sum for all of its rows, of which a sequence gets its share.
  const double share = static_cast<double>(sequence.num_rows) /
                       static_cast<double>(std::max<int64_t>(1, from.label.num_rows));
  const std::array<double, 2> sums{from.masked_mass_sum * share, from.tail_bound_sum * share};
  body.append(reinterpret_cast<const char*>(sums.data()), kSumBytes);

  RecordHead head{.magic = kRecordMagic,
                  .rows = static_cast<uint32_t>(sequence.num_rows),
                  .body_bytes = body.size(),
                  .key = {},
                  .check = 0};
  std::memcpy(head.key.data(), sequence.key.data(), kContentKeyBytes);
  head.check = record_check(head, std::as_bytes(std::span(body)));
  body.insert(0, reinterpret_cast<const char*>(&head), sizeof head);
  // Head and body are appended as one, so that a crash leaves a torn record only at the end of the
  // file, where cut_torn_records() finds it.
  append_bytes(fd_, body, path_);
}

void PayloadWriter::sync() {
  if (::fsync(fd_) == 0) return;
  const int failed = errno;
  throw Error(failed == ENOSPC ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              "cannot write " + path_.string() + ": " + std::generic_category().message(failed));
}

std::vector<PayloadFile> payload_files(const fs::path& folder) {
  std::vector<PayloadFile> files;
  if (!fs::is_directory(records_folder(folder))) return files;
  for (const auto& entry : fs::directory_iterator(records_folder(folder)))
    if (entry.path().extension() == kPayloadSuffix)
      files.push_back({.name = entry.path().filename().string(),
                       .bytes = static_cast<int64_t>(entry.file_size())});
  std::ranges::sort(files, {}, &PayloadFile::name);
  return files;
}

void cut_torn_records(const fs::path& folder, int64_t rank, int64_t ranks) {
  const std::vector<PayloadFile> files = payload_files(folder);
  for (size_t i = 0; i < files.size(); ++i) {
    // An earlier call may have had another number of ranks, so files are shared out by their place
    // in the list.
    if (static_cast<int64_t>(i) % ranks != rank || files[i].bytes == 0) continue;
    const fs::path path = records_folder(folder) / files[i].name;
    const size_t whole = whole_bytes(MappedFile(path).bytes());
    if (whole < static_cast<size_t>(files[i].bytes)) fs::resize_file(path, whole);
  }
}

}  // namespace retort::recipes
