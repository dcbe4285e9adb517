#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/text/detail/table_lengths.h"

namespace retort::models::detail {
namespace {

// These are the types of the compact protocol of Thrift.
enum class Thrift : uint8_t {
  kStop,
  kTrue,
  kFalse,
  kByte,
  kInt16,
  kInt32,
  kInt64,
  kDouble,
  kBinary,
  kList,
  kSet,
  kMap,
  kStruct,
  kUuid,
};

// Reads values of Thrift's compact protocol one after the other.
class ThriftReader {
 public:
  ThriftReader(std::string_view rest, const std::string& origin) : rest_(rest), origin_(origin) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, origin_ + ": damaged Parquet data: " + what);
  }
  uint64_t left() const { return rest_.size(); }

  int64_t integer() {
    const uint64_t bits = varint();
    return static_cast<int64_t>(bits >> 1) ^ -static_cast<int64_t>(bits & 1);
  }

  // Calls `field(number, type)` for each field of a struct; it reads the value.
  template <class Function>
  void read_struct(Function field) {
    int64_t number = 0;
    for (;;) {
      const uint8_t head = byte();
      const Thrift type = type_of(head);
      if (type == Thrift::kStop) return;
      number = head >> 4 == 0 ? integer() : number + (head >> 4);
      field(number, type);
    }
  }

  // Calls `item(type)` for each item of a list; it reads the item.
  template <class Function>
  void read_list(Function item) {
    const uint8_t head = byte();
    const Thrift type = type_of(head);
    const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
    // An item has at least a byte, so a count beyond the bytes left is refused before anything is
    // stored.
    if (count > rest_.size())
      refuse("a list of " + std::to_string(count) + " items where " + std::to_string(rest_.size()) +
             " bytes are left");
    for (uint64_t i = 0; i < count; ++i)
      item(type);
  }

  void skip(Thrift type) { skip(type, 0); }

 private:
  static Thrift type_of(uint8_t head) { return static_cast<Thrift>(head & 15); }

  uint8_t byte() {
    take(1);
    return static_cast<uint8_t>(*(rest_.data() - 1));
  }
  void take(uint64_t count) {
    if (count > rest_.size()) refuse("it ends inside a value");
    rest_.remove_prefix(count);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t bits = byte();
      value |= (bits & 127) << shift;
      if (bits < 128) return value;
    }
    refuse("a number of more than 64 bits");
  }

  // A boolean is a part of the head of its field, but a byte in a list.
  void skip_item(Thrift type, int depth) {
    if (type == Thrift::kTrue || type == Thrift::kFalse)
      take(1);
    else
      skip(type, depth);
  }

  void skip(Thrift type, int depth) {
    if (depth > kMaxColumnDepth) refuse("values nested deeper than 64 levels");
    switch (type) {
      case Thrift::kTrue:
      case Thrift::kFalse: return;
      case Thrift::kByte: return take(1);
      case Thrift::kInt16:
      case Thrift::kInt32:
      case Thrift::kInt64: varint(); return;
      case Thrift::kDouble: return take(8);
      case Thrift::kUuid: return take(16);
      case Thrift::kBinary: return take(varint());
      case Thrift::kList:
      case Thrift::kSet: return read_list([&](Thrift item) { skip_item(item, depth + 1); });
      case Thrift::kMap: return skip_map(depth);
      case Thrift::kStruct:
        return read_struct([&](int64_t, Thrift field) { skip(field, depth + 1); });
      case Thrift::kStop: break;
    }
    refuse("a value of an unknown type");
  }

  void skip_map(int depth) {
    const uint64_t count = varint();
    if (count == 0) return;
    if (count > rest_.size()) refuse("a map of more items than there are bytes");
    const uint8_t types = byte();
    for (uint64_t i = 0; i < count; ++i) {
      skip_item(static_cast<Thrift>(types >> 4), depth + 1);
      skip_item(type_of(types), depth + 1);
    }
  }

  std::string_view rest_;
  const std::string& origin_;
};

// Reads the integer fields that `numbers` names, and passes over all others.
void read_numbers(ThriftReader& reader,
                  std::initializer_list<std::pair<int64_t, int64_t*>> numbers) {
  reader.read_struct([&](int64_t number, Thrift type) {
    const bool integer = type >= Thrift::kInt16 && type <= Thrift::kInt64;
    for (const auto& [wanted, value] : numbers) {
      if (number != wanted || !integer) continue;
      *value = reader.integer();
      return;
    }
    reader.skip(type);
  });
}

// The elements of a schema stand in the order of a walk, each with the number of its children.
class SchemaDepth {
 public:
  explicit SchemaDepth(const ThriftReader& reader) : reader_(reader) {}
  void add(int64_t children) {
    if (!open_.empty()) --open_.back();
    if (children > 0) open_.push_back(children);
    if (open_.size() > kMaxColumnDepth)
      reader_.refuse("columns nested deeper than " + std::to_string(kMaxColumnDepth) + " levels");
    while (!open_.empty() && open_.back() == 0)
      open_.pop_back();
  }

 private:
  const ThriftReader& reader_;
  std::vector<int64_t> open_;  // children that are still to come, outermost first
};

class ParquetCheck {
 public:
  ParquetCheck(std::string_view file, const std::string& origin) : file_(file), origin_(origin) {}

  void check() {
    constexpr size_t kEnd = 8;  // the footer's length and the mark
    if (file_.size() < 4 + kEnd || !file_.ends_with("PAR1"))
      outside().refuse("it does not end as a file of Parquet does (cut file?)");
    uint32_t length = 0;
    std::memcpy(&length, file_.data() + file_.size() - kEnd, sizeof length);
    if (length > file_.size() - kEnd)
      outside().refuse("a footer of " + std::to_string(length) + " bytes in a file of " +
                       std::to_string(file_.size()));

    ThriftReader footer(file_.substr(file_.size() - kEnd - length, length), origin_);
    footer.read_struct([&](int64_t field, Thrift type) {
      if (field == 2 && type == Thrift::kList) return check_schema(footer);
      if (field == 4 && type == Thrift::kList)
        return footer.read_list([&](Thrift item) { check_row_group(footer, item); });
      footer.skip(type);
    });
  }

 private:
  // Makes messages about what no reader stands in.
  ThriftReader outside() const { return {{}, origin_}; }

  static void check_schema(ThriftReader& footer) {
    SchemaDepth depth(footer);
    footer.read_list([&](Thrift item) {
      if (item != Thrift::kStruct) footer.refuse("a schema that is none");
      int64_t children = 0;
      read_numbers(footer, {{5, &children}});
      depth.add(children);
    });
  }

  struct Column {
    int64_t values = 0, bytes = 0, data_place = 0, dictionary_place = 0;
  };

  void check_row_group(ThriftReader& footer, Thrift type) const {
    if (type != Thrift::kStruct) footer.refuse("a group of rows that is none");
    int64_t rows = 0;
    std::vector<Column> columns;
    footer.read_struct([&](int64_t field, Thrift kind) {
      if (field == 1 && kind == Thrift::kList)
        return footer.read_list([&](Thrift item) { columns.push_back(read_column(footer, item)); });
      if (field == 3 && kind == Thrift::kInt64)
        rows = footer.integer();
      else
        footer.skip(kind);
    });

    if (columns.empty() && rows != 0) footer.refuse("rows without a column");
    for (const Column& column : columns) {
      if (rows < 0 || rows > column.values)
        footer.refuse("a column of " + std::to_string(column.values) + " values in a group of " +
                      std::to_string(rows) + " rows");
      check_pages(column);
    }
  }

  static Column read_column(ThriftReader& footer, Thrift type) {
    if (type != Thrift::kStruct) footer.refuse("a column that is none");
    Column column;
    footer.read_struct([&](int64_t field, Thrift kind) {
      if (field != 3 || kind != Thrift::kStruct) return footer.skip(kind);
      read_numbers(footer, {{5, &column.values},
                            {7, &column.bytes},
                            {9, &column.data_place},
                            {11, &column.dictionary_place}});
    });
    return column;
  }

  struct Page {
    int64_t bytes = 0, compressed = 0, dictionary_values = 0, values = 0;
  };

  void check_pages(const Column& column) const {
    const int64_t first =
        column.dictionary_place != 0 ? column.dictionary_place : column.data_place;
    const auto size = static_cast<int64_t>(file_.size());
    if (first < 0 || column.bytes < 0 || first > size || column.bytes > size - first)
      outside().refuse("a column of " + std::to_string(column.bytes) + " bytes at " +
                       std::to_string(first) + " in a file of " + std::to_string(size));

    // Pages stand one behind the other, each behind a header of its own.
    std::string_view rest =
        file_.substr(static_cast<size_t>(first), static_cast<size_t>(column.bytes));
    for (int64_t seen = 0; !rest.empty();) {
      ThriftReader reader(rest, origin_);
      Page page;
      try {
        page = read_page(reader);
      } catch (const Error&) {
        // Some writers count a few bytes too many to a column; nobody reads them.
        if (seen >= column.values) return;
        throw;
      }
      rest.remove_prefix(rest.size() - reader.left());
      check_page(page, rest.size());
      rest.remove_prefix(static_cast<size_t>(page.compressed));
      seen += page.values;
    }
  }

  static Page read_page(ThriftReader& reader) {
    Page page;
    reader.read_struct([&](int64_t field, Thrift kind) {
      if (field == 2 && kind == Thrift::kInt32)
        page.bytes = reader.integer();
      else if (field == 3 && kind == Thrift::kInt32)
        page.compressed = reader.integer();
      else if ((field == 5 || field == 8) && kind == Thrift::kStruct)
        read_numbers(reader, {{1, &page.values}});
      else if (field == 7 && kind == Thrift::kStruct)
        read_numbers(reader, {{1, &page.dictionary_values}});
      else
        reader.skip(kind);
    });
    return page;
  }

  void check_page(const Page& page, uint64_t left) const {
    if (page.compressed < 0 || static_cast<uint64_t>(page.compressed) > left)
      outside().refuse("a page of " + std::to_string(page.compressed) + " bytes where " +
                       std::to_string(left) + " are left");
    const uint64_t most =
        std::max(kSmallPageBytes, kMaxGrowth * static_cast<uint64_t>(page.compressed));
    if (page.bytes < 0 || static_cast<uint64_t>(page.bytes) > most)
      outside().refuse("a page of " + std::to_string(page.compressed) + " bytes that becomes " +
                       std::to_string(page.bytes));
    // The page holds the entries of a dictionary, of two bytes or more each except for tiny types.
    constexpr int64_t kTiny = 1 << 16;
    if (page.values < 0 || page.dictionary_values < 0 ||
        page.dictionary_values > kTiny + page.bytes / 2)
      outside().refuse("a dictionary of " + std::to_string(page.bytes) + " bytes that has " +
                       std::to_string(page.dictionary_values) + " entries");
  }

  std::string_view file_;
  const std::string& origin_;
};

}  // namespace

void check_parquet_lengths(std::string_view file, const std::string& origin) {
  ParquetCheck(file, origin).check();
}

}  // namespace retort::models::detail
