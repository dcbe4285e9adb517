#include "base/malloc_tuning.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>

#include "tests/support/sanitizer.h"

namespace retort {
namespace {

TEST(FreedMemory, StaysWithTheProcess) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer's allocator has no such settings";
  constexpr size_t kBytes = size_t{200} << 20;
  keep_freed_memory();
  const size_t mapped = ::mallinfo2().hblkhd;
  void* piece = std::malloc(kBytes);
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(::mallinfo2().hblkhd, mapped) << "mapped for itself, and so unmapped when it is freed";
  std::free(piece);
  EXPECT_GE(::mallinfo2().fordblks, kBytes) << "kept";
}

}  // namespace
}  // namespace retort
