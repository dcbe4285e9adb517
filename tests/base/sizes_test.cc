#include "base/sizes.h"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

namespace retort {
namespace {

TEST(Sizes, KeepTheValue) {
  EXPECT_EQ(to_size(int64_t{3}), size_t{3});
  EXPECT_EQ(to_int64(size_t{3}), 3);
  EXPECT_EQ(to_int(int64_t{-3}), -3);
  static_assert(std::is_same_v<decltype(to_int64(size_t{})), int64_t>);
}

TEST(SizesDeathTest, DebugBuildsRefuseWhatDoesNotFit) {
  EXPECT_DEBUG_DEATH(to_size(int64_t{-1}), "-1 does not fit");
  EXPECT_DEBUG_DEATH(to_int64(std::numeric_limits<size_t>::max()), "does not fit");
  EXPECT_DEBUG_DEATH(to_int(int64_t{1} << 31), "does not fit");
}

}  // namespace
}  // namespace retort
