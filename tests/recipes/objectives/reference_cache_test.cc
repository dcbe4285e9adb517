// The reference's log-probabilities on disk: what was written is found again, what was damaged is
// not, another reference is refused.
#include "recipes/run/reference/reference_cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/hash.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {
namespace fs = std::filesystem;

class ReferenceCacheTest : public test::FolderTest {
 protected:
  ReferenceCache open(int64_t rank = 0) {
    return ReferenceCache(folder_ / "cache", fingerprint, folder_ / "run", rank);
  }
  fs::path file(int64_t rank = 0) const {
    return folder_ / "cache" / ("reference-" + fingerprint.substr(0, 16)) /
           ("rank-" + std::to_string(rank) + ".logps");
  }
  static std::vector<int32_t> completion(int32_t i) { return {i, i + 1, i + 2}; }

  const std::string fingerprint = sha256_hex("a reference");
  const std::vector<int32_t> prompt{1, 2};
};

TEST_F(ReferenceCacheTest, FindsWhatAnyRankWrote) {
  {
    ReferenceCache first = open(0), second = open(1);
    first.add(prompt, completion(1), -1.5f);
    first.add(prompt, completion(1), -9.0f);  // known already: the first answer stays
    second.add(prompt, completion(2), -2.5f);
    EXPECT_EQ(first.find(prompt, completion(1)), -1.5f);
    EXPECT_EQ(first.find(prompt, completion(2)), std::nullopt);
  }
  EXPECT_EQ(fs::file_size(file(0)), 24u);
  const ReferenceCache later = open(0);
  EXPECT_EQ(later.size(), 2);
  EXPECT_EQ(later.find(prompt, completion(1)), -1.5f);
  EXPECT_EQ(later.find(prompt, completion(2)), -2.5f);
  // The place where the prompt ends belongs to the key.
  EXPECT_EQ(later.find({1, 2, 1}, {2, 3}), std::nullopt);
  EXPECT_EQ(later.find({}, {1, 2, 1, 2, 3}), std::nullopt);
}

TEST_F(ReferenceCacheTest, ATornRecordIsLostAlone) {
  {
    ReferenceCache cache = open();
    for (int32_t i = 0; i < 3; ++i)
      cache.add(prompt, completion(i), -static_cast<float>(i));
  }
  fs::resize_file(file(), 3 * 24 - 5);
  {
    ReferenceCache cache = open();
    EXPECT_EQ(cache.size(), 2);
    cache.add(prompt, completion(7), -7.0f);
  }
  const ReferenceCache cache = open();
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.find(prompt, completion(7)), -7.0f);
  EXPECT_EQ(cache.find(prompt, completion(1)), -1.0f);
  EXPECT_EQ(cache.find(prompt, completion(2)), std::nullopt);
}

// Once the second run cut the file to whole records while the first was in the middle of one, and
// wrote into it besides.
TEST_F(ReferenceCacheTest, TwoRunsShareAFolder) {
  ReferenceCache first = open();
  first.add(prompt, completion(1), -1.0f);
  // Half of a record, as another process may see it: the rest is on its way.
  const std::string record = read_file(file());
  std::ofstream(file(), std::ios::binary | std::ios::app) << record.substr(0, 10);

  ReferenceCache second = open();
  EXPECT_EQ(second.find(prompt, completion(1)), -1.0f);
  second.add(prompt, completion(2), -2.0f);
  EXPECT_EQ(fs::file_size(file()), 34u);
  std::ofstream(file(), std::ios::binary | std::ios::app) << record.substr(10);
  first.add(prompt, completion(3), -3.0f);

  const ReferenceCache third = open();
  for (int32_t i = 1; i <= 3; ++i)
    EXPECT_EQ(third.find(prompt, completion(i)), -static_cast<float>(i));
}

// What a run has left is used again, not left behind beside a file for each start.
TEST_F(ReferenceCacheTest, ARunThatIsResumedGoesOnInItsFile) {
  for (int32_t start = 0; start < 3; ++start) {
    ReferenceCache cache = open();
    cache.add(prompt, completion(start), -1.0f);
  }
  EXPECT_EQ(fs::file_size(file()), 3 * 24u);
  EXPECT_EQ(std::distance(fs::directory_iterator(file().parent_path()), {}), 1);
}

TEST_F(ReferenceCacheTest, EveryDamagedByteIsFound) {
  {
    ReferenceCache cache = open();
    for (int32_t i = 0; i < 2; ++i)
      cache.add(prompt, completion(i), -1.0f - static_cast<float>(i));
  }
  const std::string good = read_file(file());
  for (size_t at = 0; at < 24; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    std::ofstream(file(), std::ios::binary) << bad;
    const ReferenceCache cache = open();
    EXPECT_EQ(cache.find(prompt, completion(0)), std::nullopt) << at;
    EXPECT_EQ(cache.find(prompt, completion(1)), -2.0f) << at;
  }
  // as a crash of the machine may leave it
  std::ofstream(file(), std::ios::binary) << std::string(48, '\0');
  EXPECT_EQ(open().size(), 0);
}

TEST_F(ReferenceCacheTest, AnotherReferenceIsRefusedForTheSameRunOnly) {
  { ReferenceCache cache = open(); }
  const std::string other = sha256_hex("another");
  const std::string message = test::message_of(
      [&] { ReferenceCache(folder_ / "cache", other, folder_ / "run", 0); }, ErrorCode::kMismatch);
  EXPECT_NE(message.find(other.substr(0, 16)), std::string::npos) << message;
  // one folder serves several references
  const ReferenceCache beside(folder_ / "cache", other, folder_ / "run-2", 0);
  EXPECT_EQ(beside.size(), 0);
}

}  // namespace
}  // namespace retort::recipes
