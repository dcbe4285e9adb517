#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "models/text/detail/table_lengths.h"

namespace retort::models::detail {
namespace {

// Reads bytes in which nothing is believed: whatever does not lie in them is an error.
class ArrowBytes {
 public:
  ArrowBytes(std::string_view bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, origin_ + ": damaged Arrow data: " + what);
  }
  uint64_t size() const { return bytes_.size(); }

  template <class Number>
  Number at(uint64_t place) const {
    Number value;
    std::memcpy(&value, part(place, sizeof value, "a number").data(), sizeof value);
    return value;
  }

  std::string_view part(uint64_t begin, uint64_t length, const char* what) const {
    if (begin > bytes_.size() || length > bytes_.size() - begin)
      refuse(std::string(what) + " of " + std::to_string(length) + " bytes at " +
             std::to_string(begin) + ", where " +
             std::to_string(begin > bytes_.size() ? 0 : bytes_.size() - begin) + " are left");
    return bytes_.substr(begin, length);
  }
  ArrowBytes inside(uint64_t begin, uint64_t length, const char* what) const {
    return {part(begin, length, what), origin_};
  }

 private:
  std::string_view bytes_;
  const std::string& origin_;
};

struct FlatVector {
  uint64_t begin = 0;
  uint64_t count = 0;
};

// A table of FlatBuffers: fields by number, any of which may be absent.
class FlatTable {
 public:
  // Opens the table to which the offset at `place` leads.
  FlatTable(const ArrowBytes& bytes, uint64_t place)
      : bytes_(bytes), begin_(place + bytes.at<uint32_t>(place)) {
    // The list of fields may stand before the table or behind it.
    const int64_t fields = static_cast<int64_t>(begin_) - bytes_.at<int32_t>(begin_);
    if (fields < 0) bytes_.refuse("a table without fields");
    fields_ = static_cast<uint64_t>(fields);
    fields_bytes_ = bytes_.at<uint16_t>(fields_);
  }

  std::optional<uint64_t> place_of(uint64_t field) const {
    const uint64_t entry = 4 + 2 * field;
    if (entry + 2 > fields_bytes_) return std::nullopt;
    const uint16_t offset = bytes_.at<uint16_t>(fields_ + entry);
    if (offset == 0) return std::nullopt;
    return begin_ + offset;
  }
  template <class Number>
  Number number(uint64_t field) const {
    const auto place = place_of(field);
    return place ? bytes_.at<Number>(*place) : Number{0};
  }
  std::optional<FlatTable> table(uint64_t field) const {
    const auto place = place_of(field);
    return place ? std::optional(FlatTable(bytes_, *place)) : std::nullopt;
  }
  // Returns a list of structs of `item_bytes` bytes.
  FlatVector vector(uint64_t field, uint64_t item_bytes) const {
    const auto place = place_of(field);
    if (!place) return {};
    const uint64_t count_place = *place + bytes_.at<uint32_t>(*place);
    const FlatVector items{count_place + 4, bytes_.at<uint32_t>(count_place)};
    bytes_.part(items.begin, items.count * item_bytes, "a list");
    return items;
  }

 private:
  const ArrowBytes& bytes_;
  uint64_t begin_, fields_ = 0;
  uint16_t fields_bytes_ = 0;
};

uint64_t not_negative(const ArrowBytes& bytes, int64_t value, const char* what) {
  if (value < 0) bytes.refuse(std::string(what) + " of " + std::to_string(value));
  return static_cast<uint64_t>(value);
}

// Returns the bytes that a buffer has in memory, after it is decompressed.
uint64_t expanded_bytes(const ArrowBytes& body, uint64_t begin, uint64_t length, bool compressed) {
  constexpr uint64_t kPrefix = 8;  // the length before compression
  body.part(begin, length, "a buffer");
  if (!compressed || length == 0) return length;
  if (length < kPrefix) body.refuse("a compressed buffer without its length");
  const int64_t claimed = body.at<int64_t>(begin);
  return claimed == -1 ? length - kPrefix  // it would have become longer, and was left as it is
                       : not_negative(body, claimed, "a compressed buffer");
}

// Checks a RecordBatch of Message.fbs in `message` against the body that follows it.
void check_batch(const ArrowBytes& message, const FlatTable& batch, const ArrowBytes& body) {
  const bool compressed = batch.place_of(3).has_value();

  // A compressed buffer may claim any size, so the growth of the whole batch has a limit.
  uint64_t expanded = 0;
  const uint64_t limit = std::max(kSmallBatchBytes, kMaxGrowth * body.size());
  const FlatVector buffers = batch.vector(2, 16);
  for (uint64_t i = 0; i < buffers.count; ++i) {
    const uint64_t place = buffers.begin + 16 * i;
    const uint64_t begin = not_negative(body, message.at<int64_t>(place), "a buffer's place");
    const uint64_t length = not_negative(body, message.at<int64_t>(place + 8), "a buffer");
    const uint64_t bytes = expanded_bytes(body, begin, length, compressed);
    if (bytes > limit || (expanded += bytes) > limit)
      body.refuse("a batch of " + std::to_string(body.size()) + " bytes that becomes more than " +
                  std::to_string(limit));
  }

  // A value has at least a bit, unless it is null, so a batch can have no more values than that.
  const uint64_t most = kSmallBatchValues + 8 * expanded;
  const auto check_count = [&](int64_t count) {
    if (not_negative(body, count, "a number of values") > most)
      body.refuse("a batch of " + std::to_string(expanded) + " bytes that has " +
                  std::to_string(count) + " values");
  };
  check_count(batch.number<int64_t>(0));
  const FlatVector columns = batch.vector(1, 16);
  for (uint64_t i = 0; i < columns.count; ++i)
    check_count(message.at<int64_t>(columns.begin + 16 * i));
}

void check_message(const ArrowBytes& message, const FlatTable& root, const ArrowBytes& body) {
  enum : uint8_t { kDictionaryBatch = 2, kRecordBatch = 3 };
  const uint8_t type = root.number<uint8_t>(1);
  const auto header = root.table(2);
  if (!header) return;
  if (type == kRecordBatch) check_batch(message, *header, body);
  if (type == kDictionaryBatch)
    if (const auto values = header->table(1)) check_batch(message, *values, body);
}

constexpr uint32_t kContinuation = 0xffffffff;

// Checks messages one after the other, until one without a length.
void check_stream(const ArrowBytes& file) {
  for (uint64_t place = 0; file.size() - place >= 4;) {
    int32_t length = file.at<int32_t>(place);
    place += 4;
    // Newer files put a mark before the length of each message.
    if (static_cast<uint32_t>(length) == kContinuation) {
      length = file.at<int32_t>(place);
      place += 4;
    }
    if (length == 0) return;
    const uint64_t bytes = not_negative(file, length, "a message");
    const ArrowBytes message = file.inside(place, bytes, "a message");
    place += bytes;

    const FlatTable root(message, 0);
    const uint64_t body_bytes = not_negative(file, root.number<int64_t>(3), "a message's body");
    check_message(message, root, file.inside(place, body_bytes, "a message's body"));
    place += body_bytes;
  }
}

// Checks the blocks that the footer lists in its field `list`. `left` counts the bytes that no
// block has had: blocks that share bytes would make a small file a large table.
void check_blocks(const ArrowBytes& file, const ArrowBytes& footer, const FlatTable& root,
                  uint64_t list, uint64_t& left) {
  constexpr uint64_t kBlockBytes = 24;
  const FlatVector blocks = root.vector(list, kBlockBytes);
  for (uint64_t i = 0; i < blocks.count; ++i) {
    const uint64_t entry = blocks.begin + kBlockBytes * i;
    const uint64_t place = not_negative(file, footer.at<int64_t>(entry), "a message's place");
    const uint64_t bytes = not_negative(file, footer.at<int32_t>(entry + 8), "a message");
    const uint64_t body_bytes =
        not_negative(file, footer.at<int64_t>(entry + 16), "a message's body");
    const ArrowBytes block = file.inside(place, bytes, "a message");
    const ArrowBytes body = file.inside(place + bytes, body_bytes, "a message's body");
    if (bytes + body_bytes > left) file.refuse("messages that share bytes");
    left -= bytes + body_bytes;

    const uint64_t head = block.at<uint32_t>(0) == kContinuation ? 8 : 4;
    if (bytes < 8) file.refuse("a message of " + std::to_string(bytes) + " bytes");
    const ArrowBytes message = block.inside(head, bytes - head, "a message");
    check_message(message, FlatTable(message, 0), body);
  }
}

void check_file(const ArrowBytes& file) {
  constexpr std::string_view kMark = "ARROW1";
  constexpr uint64_t kEnd = 4 + kMark.size();  // the footer's length stands before the mark
  if (file.size() < 8 + kEnd || file.part(file.size() - kMark.size(), kMark.size(), "") != kMark)
    file.refuse("it does not end as a file of Arrow does (cut file?)");
  const uint64_t end = file.size() - kEnd;
  const uint64_t length = not_negative(file, file.at<int32_t>(end), "a footer");
  if (length > end)
    file.refuse("a footer of " + std::to_string(length) + " bytes in a file of " +
                std::to_string(file.size()));

  const ArrowBytes footer = file.inside(end - length, length, "a footer");
  const FlatTable root(footer, 0);
  uint64_t left = file.size();
  check_blocks(file, footer, root, 2, left);  // dictionaries
  check_blocks(file, footer, root, 3, left);  // batches of rows
}

}  // namespace

void check_arrow_lengths(std::string_view file, const std::string& origin) {
  const ArrowBytes bytes(file, origin);
  if (file.starts_with("ARROW1"))
    check_file(bytes);
  else
    check_stream(bytes);
}

}  // namespace retort::models::detail
