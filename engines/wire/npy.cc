#include "engines/wire/npy.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kQuotedHeader = 120;  // bytes of a header that an error quotes

[[noreturn]] void no_array(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "the array is no .npy: " + what);
}

// The header, a dictionary as Python writes it, and where the numbers begin.
struct NpyHeader {
  std::string_view text;
  size_t end = 0;
};

NpyHeader npy_header(std::string_view bytes) {
  if (!bytes.starts_with(kMagic) || bytes.size() < kMagic.size() + 2)
    no_array("it does not begin as one");
  const int version = bytes[kMagic.size()];
  if (version < 1 || version > 3) no_array("version " + std::to_string(version));
  const size_t at = kMagic.size() + 2;
  const size_t width = version == 1 ? 2 : 4;
  if (bytes.size() < at + width) no_array("it ends in its header");

  // The length is little-endian, of two bytes in version 1 and of four later.
  uint64_t length = 0;
  for (size_t i = 0; i < width; ++i)
    length |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  if (length > bytes.size() - at - width) no_array("it ends in its header");
  return {.text = bytes.substr(at + width, length), .end = at + width + length};
}

// Returns what follows 'key': in the header, without the spaces before it.
std::string_view header_value(std::string_view header, const std::string& key) {
  const size_t found = header.find("'" + key + "':");
  if (found == std::string_view::npos)
    no_array("its header has no " + key + ": " + json_quote(header.substr(0, kQuotedHeader)));
  std::string_view value = header.substr(found + key.size() + 3);
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

// Reads rows and columns from "(3, 4), }"; their bytes are the rest of the array.
std::array<int64_t, 2> matrix_sizes(std::string_view value) {
  const std::string_view shape = value.substr(0, value.find(')'));
  const auto refuse = [&] {
    no_array("its shape is no matrix: " + json_quote(shape.substr(0, kQuotedHeader)));
  };
  if (!shape.starts_with('(')) no_array("its header has no shape that is one");

  std::array<int64_t, 2> sizes{};
  const char* at = shape.data() + 1;
  const char* const end = shape.data() + shape.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    while (at != end && *at == ' ')
      ++at;
    const auto [stopped, error] = std::from_chars(at, end, sizes[i]);
    if (error != std::errc() || sizes[i] < 0) refuse();
    at = stopped;
    if (i + 1 == sizes.size()) break;
    if (at == end || *at++ != ',') refuse();
  }
  const std::string_view rest(at, static_cast<size_t>(end - at));
  if (rest.find_first_not_of(", ") != std::string_view::npos) refuse();
  return sizes;
}

}  // namespace

at::Tensor read_npy_matrix(std::span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const NpyHeader header = npy_header(text);
  const std::string_view dtype = header_value(header.text, "descr");
  if (!dtype.starts_with("'<f4'"))
    no_array("its numbers are " +
             json_quote(dtype.substr(0, std::min(dtype.find(','), kQuotedHeader))) +
             " instead of \"'<f4'\"");
  if (!header_value(header.text, "fortran_order").starts_with("False"))
    no_array("it stands column by column");

  // The sizes are a stranger's words. They must agree with the bytes that are there before memory
  // is allocated for them, and the comparison divides, because their product may overflow.
  const auto [rows, columns] = matrix_sizes(header_value(header.text, "shape"));
  const size_t have = text.size() - header.end;
  const size_t most = have / sizeof(float);
  const bool fits = rows == 0 || columns == 0 ||
                    static_cast<uint64_t>(columns) <= most / static_cast<uint64_t>(rows);
  if (!fits || static_cast<uint64_t>(rows * columns) * sizeof(float) != have)
    no_array("its shape is [" + std::to_string(rows) + ", " + std::to_string(columns) + "], and " +
             std::to_string(have) + " bytes follow");
  at::Tensor matrix = at::empty({rows, columns}, at::kFloat);
  if (have > 0) std::memcpy(matrix.mutable_data_ptr<float>(), text.data() + header.end, have);
  return matrix;
}

}  // namespace retort::engines
