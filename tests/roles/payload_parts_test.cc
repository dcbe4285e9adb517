// How the rows of an answer are shared out over its parts.
#include "roles/teacher/parts.h"

#include <gtest/gtest.h>

namespace retort::roles {
namespace {

TEST(RowPart, CoversEveryRowOnce) {
  for (const int64_t rows : {0, 1, 5, 6, 7, 64})
    for (const int64_t parts : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const Range range = row_part(rows, parts, part);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.size(), rows_per_part(rows, parts));
        EXPECT_GE(range.size(), 0);
        next = range.end;
      }
      EXPECT_EQ(next, rows);
    }
}

TEST(RowPart, LeavesTheLastPartsShort) {
  EXPECT_EQ(row_part(7, 3, 0), (Range{0, 3}));
  EXPECT_EQ(row_part(7, 3, 1), (Range{3, 6}));
  EXPECT_EQ(row_part(7, 3, 2), (Range{6, 7}));
  EXPECT_EQ(row_part(2, 4, 3), (Range{2, 2}));
  EXPECT_EQ(row_part(9, 8, 7), (Range{9, 9})) << "part 4 has the last row";
}

TEST(RowPart, OfFullPayloadsEachPartHasAllRows) {
  EXPECT_EQ(rows_of_part(PayloadKind::kFull, 7, 3, 1), (Range{0, 7}));
  EXPECT_EQ(rows_of_part(PayloadKind::kTopK, 7, 3, 1), row_part(7, 3, 1));
}

}  // namespace
}  // namespace retort::roles
