#include "recipes/data/detail/token_file.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"

namespace retort::data::detail {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "retort tokens 2\n";
// The rows that one thread makes before they are written.
constexpr int64_t kPieceRows = 512;

void put_number(std::string& out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    out += static_cast<char>(value >> (8 * i));
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size(), 4);
  out += text;
}

uint64_t checksum_of(std::string_view bytes) {
  return checksum64(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// A record: checksum of what follows; why the row is bad; whether it was cut; whether its prompt
// alone has other tokens; ids; targets; fields.
std::string record_of(const MadeRow& row) {
  std::string body;
  put_text(body, row.bad);
  put_number(body, row.sample.truncated ? 1 : 0, 1);
  put_number(body, row.sample.prompt_differs ? 1 : 0, 1);
  put_number(body, row.sample.input_ids.size(), 4);
  for (const int32_t id : row.sample.input_ids)
    put_number(body, static_cast<uint32_t>(id), 4);
  for (const uint8_t target : row.sample.is_target)
    put_number(body, target, 1);
  put_number(body, row.sample.fields.size(), 4);
  for (const auto& [name, value] : row.sample.fields) {
    put_text(body, name);
    put_text(body, value);
  }
  std::string record;
  put_number(record, checksum_of(body), 8);
  return record + body;
}

// Takes what a record holds off its front. Its checksum was right, so something missing is a bug of
// the writer.
class RecordReader {
 public:
  explicit RecordReader(std::string_view left) : left_(left) {}

  std::string_view bytes(size_t count) {
    RETORT_CHECK(count <= left_.size()) << "a record ends too early";
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  uint64_t number(size_t size) {
    uint64_t value = 0;
    const std::string_view taken = bytes(size);
    for (size_t i = 0; i < size; ++i)
      value |= static_cast<uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
    return value;
  }
  std::string text() {
    const size_t size = number(4);
    return std::string(bytes(size));
  }

 private:
  std::string_view left_;
};

// Makes the records of a few rows, on one thread.
std::vector<std::string> make_records(int64_t begin, int64_t end,
                                      const std::function<MadeRow(int64_t)>& make) {
  std::vector<std::string> records;
  for (int64_t row = begin; row < end; ++row)
    records.push_back(record_of(make(row)));
  return records;
}

[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::kCorrupt,
              path.string() + ": " + what + "; remove this file, it is made again");
}

}  // namespace

TokenFile::TokenFile(const fs::path& path, int64_t rows) : file_(path), rows_(rows) {
  const std::string_view text = file_.text();
  const auto count = static_cast<size_t>(rows);
  const size_t least = kMagic.size() + 8 * (count + 2);
  if (text.size() < least || !text.starts_with(kMagic) ||
      RecordReader(text.substr(text.size() - 8)).number(8) != count)
    damaged(path, "is no file of the tokens of " + std::to_string(rows) + " rows");
}

Sample TokenFile::sample(int64_t row, const std::string& origin) const {
  RETORT_CHECK(row >= 0 && row < rows_) << "row " << row << " of " << rows_;
  const std::string_view text = file_.text();
  const size_t places = text.size() - 8 * (static_cast<size_t>(rows_) + 2);
  // The offsets of a damaged file may say anything, so they and the checksum are looked at before
  // the record is followed.
  RecordReader place(text.substr(places + 8 * static_cast<size_t>(row), 16));
  const uint64_t begin = place.number(8), end = place.number(8);
  const bool inside = begin >= kMagic.size() && end >= begin + 8 && end <= places;
  if (!inside) damaged(file_.path(), "row " + std::to_string(row) + " lies outside");

  RecordReader record(text.substr(begin, end - begin));
  const uint64_t sum = record.number(8);
  const std::string_view body = record.bytes(end - begin - 8);
  if (checksum_of(body) != sum) damaged(file_.path(), "row " + std::to_string(row) + " is damaged");

  RecordReader reader(body);
  const std::string bad = reader.text();
  // A row that was bad when the file was made is bad again, with the same message.
  if (!bad.empty()) throw Error(ErrorCode::kInvalidArgument, bad);
  Sample sample;
  sample.origin = origin;
  sample.truncated = reader.number(1) != 0;
  sample.prompt_differs = reader.number(1) != 0;
  sample.input_ids.resize(reader.number(4));
  for (int32_t& id : sample.input_ids)
    id = static_cast<int32_t>(static_cast<uint32_t>(reader.number(4)));
  const std::string_view targets = reader.bytes(sample.input_ids.size());
  sample.is_target.assign(targets.begin(), targets.end());
  const uint64_t fields = reader.number(4);
  for (uint64_t i = 0; i < fields; ++i) {
    std::string name = reader.text();
    sample.fields.emplace_back(std::move(name), reader.text());
  }
  return sample;
}

void write_token_file(const fs::path& path, int64_t rows,
                      const std::function<MadeRow(int64_t row)>& make) {
  AtomicFile out(path);
  out.write(kMagic);
  std::string places;
  const auto threads = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));

  // Each thread makes a piece, and pieces are written in the order of the rows, so that the file
  // does not depend on the number of threads.
  for (int64_t row = 0; row < rows;) {
    std::vector<std::future<std::vector<std::string>>> pieces;
    for (int64_t i = 0; i < threads && row < rows; ++i) {
      const int64_t end = std::min(rows, row + kPieceRows);
      pieces.push_back(std::async(std::launch::async, make_records, row, end, std::cref(make)));
      row = end;
    }
    for (auto& piece : pieces)
      for (const std::string& record : piece.get()) {
        put_number(places, out.size_bytes(), 8);
        out.write(record);
      }
  }

  put_number(places, out.size_bytes(), 8);  // where the last record ends
  put_number(places, static_cast<uint64_t>(rows), 8);
  out.write(places);
  out.commit();
}

}  // namespace retort::data::detail
