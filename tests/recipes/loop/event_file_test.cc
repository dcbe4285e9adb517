// TensorBoard's record format, against published checksums and a file decoded by another program's
// rules.
#include "recipes/run/metrics/event_file.h"

#include <vector>

#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

using Scalars = std::vector<std::pair<std::string, double>>;

// RFC 3720, B.4.
TEST(Crc32cTest, PublishedVectors) {
  EXPECT_EQ(recipes::crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(recipes::crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(recipes::crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(recipes::crc32c(""), 0u);
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (unsigned char c : bytes) {
    text += "0123456789abcdef"[c >> 4];
    text += "0123456789abcdef"[c & 15];
  }
  return text;
}

// Written by TensorBoard's own RecordWriter from its own protobuf classes with wall_time 1.5: the
// version event, and step 300 with two scalars.
TEST(EventRecordTest, SameBytesAsTensorBoard) {
  EXPECT_EQ(hex(recipes::event_record(recipes::version_event(1.5))),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(hex(recipes::event_record(
                recipes::scalar_event(1.5, 300, Scalars{{"loss", 0.5}, {"rpc/latency_p50", -2}}))),
            "33000000000000000ca7205609000000000000f83f10ac022a250a0b0a046c6f7373150000003f0a160a0f"
            "7270632f6c6174656e63795f7035301"
            "5000000c0d1e67e63");
}

class EventFileTest : public FolderTest {
 protected:
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path());
    return found;
  }
};

TEST_F(EventFileTest, TwoWritersNeverShareAFile) {
  recipes::EventFile a(folder_), b(folder_);
  EXPECT_NE(a.path(), b.path());
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(EventFileTest, CutBackKeepsEarlierEventsByteForByte) {
  std::string up_to_two;
  {
    recipes::EventFile file(folder_);
    for (int64_t step = 1; step <= 4; ++step) {
      file.write(step, Scalars{{"loss", 1.0 / static_cast<double>(step)}});
      if (step == 2) up_to_two = get(file.path());
    }
    EXPECT_GT(get(file.path()).size(), up_to_two.size());
  }
  recipes::cut_back_events(folder_, 2);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(hex(get(files()[0])), hex(up_to_two));
}

// A run that begins again has evaluated before its first step, perhaps.
TEST_F(EventFileTest, CutBackToTheBeginningKeepsTheVersionAlone) {
  std::string version;
  {
    recipes::EventFile file(folder_);
    version = get(file.path());
    file.write(0, Scalars{{"eval_loss", 1}});
    file.write(1, Scalars{{"loss", 1}});
  }
  recipes::cut_back_events(folder_, -1);
  EXPECT_EQ(hex(get(files().at(0))), hex(version));
}

TEST_F(EventFileTest, CutBackDropsADamagedTail) {
  recipes::EventFile file(folder_);
  file.write(1, Scalars{{"loss", 1}});
  const std::string good = get(file.path());
  file.write(2, Scalars{{"loss", 2}});
  std::string damaged = get(file.path());
  damaged[damaged.size() - 6] ^= 1;
  for (const std::string& content :
       {damaged, damaged.substr(0, damaged.size() - 3), good + "\x01\x02"}) {
    put(file.path(), content);
    recipes::cut_back_events(folder_, 100);
    EXPECT_EQ(hex(get(file.path())), hex(good));
  }
}

}  // namespace
}  // namespace retort::test
