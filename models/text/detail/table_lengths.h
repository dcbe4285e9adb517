// What a Parquet or Arrow file says of its own lengths, before the libraries that read it believe
// it: they ask the system for the memory that a length names, and where there is none the process
// ends. Private to models/text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace retort::models::detail {

// What a compressed batch of rows (Arrow) or page (Parquet) may become: this many bytes, or
// kMaxGrowth times what it has, whichever is more. Text keeps a tenth of its bytes when it is
// compressed; a column of one value may keep next to none.
inline constexpr uint64_t kSmallBatchBytes = uint64_t{256} << 20;
inline constexpr uint64_t kSmallPageBytes = uint64_t{128} << 20;
inline constexpr uint64_t kMaxGrowth = 64;

// Values of a batch that may have no bytes: of nulls a file says the number alone.
inline constexpr uint64_t kSmallBatchValues = uint64_t{1} << 20;

// Nesting of columns; the libraries call themselves once a level.
inline constexpr int kMaxColumnDepth = 64;

// Checks an Arrow IPC file or stream: that each message, its body and the buffers in it lie in
// the file, that no two blocks of the footer share bytes, and what compressed buffers and numbers
// of values claim. Touches the messages, not the rows.
// kInvalidArgument "ORIGIN: damaged Arrow data: ...". Format: arrow.apache.org/docs/format,
// "Columnar" and the schemas Message.fbs and File.fbs.
void check_arrow_lengths(std::string_view file, const std::string& origin);

// Checks a Parquet file: that the footer and its lists lie in the file, nesting, that the columns
// of each group of rows have values for all rows, that its pages lie in the file, and what
// compressed pages and dictionaries claim. Touches the footer and the pages' headers.
// kInvalidArgument "ORIGIN: damaged Parquet data: ...". Format: parquet.apache.org/docs and its
// parquet.thrift, in Thrift's compact protocol.
void check_parquet_lengths(std::string_view file, const std::string& origin);

}  // namespace retort::models::detail
