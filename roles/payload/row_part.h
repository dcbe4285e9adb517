// The rows of an answer that belong to one of the parts that it is asked for in (parts.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "roles/payload/payload.h"

namespace retort::roles {

// A range of rows, or of the ids of a vocabulary: [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// ceil(rows / parts): all parts have as many, but the last ones may have fewer, or none.
inline int64_t rows_per_part(int64_t rows, int64_t parts) { return (rows + parts - 1) / parts; }

// Part p of n: rows [p c, (p + 1) c) with c = rows_per_part, as far as there are rows.
inline Range row_part(int64_t rows, int64_t parts, int64_t part) {
  const int64_t each = rows_per_part(rows, parts);
  return {std::min(rows, part * each), std::min(rows, (part + 1) * each)};
}

// The rows of a part of an answer of `kind`: all of them for kFull, whose parts are columns.
inline Range rows_of_part(PayloadKind kind, int64_t rows, int64_t parts, int64_t part) {
  return kind == PayloadKind::kFull ? Range{0, rows} : row_part(rows, parts, part);
}

}  // namespace retort::roles
