// The framing without a socket: bytes arrive in any pieces, lengths lie, callbacks come once.
#include "rpc/transport/detail/frame_reader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "rpc/transport/detail/frame_writer.h"

namespace retort::rpc::transport::testing {
namespace {

using Progress = FrameReader::Progress;

std::string length_only(uint64_t length) {
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes;
}

std::string frame(const std::string& body) { return length_only(body.size()) + body; }

// All of `bytes` arrives at once.
void put(FrameReader& reader, const std::string& bytes) {
  reader.arrived(boost::asio::buffer_copy(reader.room(), boost::asio::buffer(bytes)));
}

// An object whose bytes are a length and as many more, and which parses nothing else.
class Object final : public tensorpipe::AbstractNopHolder {
 public:
  explicit Object(bool parses = true) : parses_(parses) {}
  size_t getSize() const override { return 0; }
  nop::Status<void> write(tensorpipe::NopWriter&) const override { return {}; }
  nop::Status<void> read(tensorpipe::NopReader& reader) override {
    nop::Status<void> status;
    if (!parses_) status.error = static_cast<nop::ErrorStatus>(1);
    if (parses_) reader = tensorpipe::NopReader(nullptr, 0);
    return status;
  }

 private:
  const bool parses_;
};

class Reading : public ::testing::Test {
 protected:
  // Feeds `bytes` in pieces of at most `piece`, serving in between. Returns the last progress.
  Progress feed(std::string_view bytes, size_t piece = 1 << 30) {
    Progress progress = Progress::kNeedsBytes;
    do {
      auto room = reader.room();
      size_t moved = 0;
      for (const auto& buffer : room) {
        const size_t size = std::min({buffer.size(), bytes.size(), piece - moved});
        if (size > 0) std::memcpy(buffer.data(), bytes.data(), size);
        bytes.remove_prefix(size);
        moved += size;
      }
      reader.arrived(moved);
      while ((progress = reader.serve()) == Progress::kServed) {
      }
      if (moved == 0) break;
    } while (!bytes.empty() && progress != Progress::kCorrupt);
    return progress;
  }
  void read_unsized() {
    reader.push({.on_bytes = [this](const tensorpipe::Error& error, const void* data, size_t size) {
      got.push_back(error ? "error" : std::string(static_cast<const char*>(data), size));
    }});
  }
  void read_sized(std::string& memory) {
    reader.push({.sized = true,
                 .data = memory.data(),
                 .length = memory.size(),
                 .on_bytes = [this, &memory](const tensorpipe::Error& error, const void*, size_t) {
                   got.push_back(error ? "error" : memory);
                 }});
  }
  void read_object(Object& object) {
    reader.push({.object = &object, .on_object = [this](const tensorpipe::Error& error) {
                   got.push_back(error ? "error" : "object");
                 }});
  }

  FrameReader reader{{.max_unsized_bytes = 100'000, .max_first_frame_bytes = 64}};
  std::vector<std::string> got;
};

TEST_F(Reading, AnyPiecesGiveTheSameFrames) {
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{8}, size_t{4096}, size_t{1} << 20}) {
    got.clear();
    std::string small(5, ' '), large(50'000, ' '), huge(3'000'000, ' ');
    read_sized(small);
    read_unsized();
    read_sized(large);
    read_unsized();
    if (piece > 1) read_sized(huge);
    std::string bytes = frame("hello") + frame("") + frame(std::string(50'000, 'b')) +
                        frame(std::string(20'000, 'c'));
    if (piece > 1) bytes += frame(std::string(3'000'000, 'd'));
    EXPECT_EQ(feed(bytes, piece), Progress::kNeedsReads) << piece;
    std::vector<std::string> expected{"hello", "", std::string(50'000, 'b'),
                                      std::string(20'000, 'c')};
    if (piece > 1) expected.push_back(std::string(3'000'000, 'd'));
    EXPECT_TRUE(got == expected) << piece;
  }
}

TEST_F(Reading, BytesThatComeBeforeTheirReadsWait) {
  EXPECT_EQ(feed(frame("one") + frame("two")), Progress::kNeedsReads);
  EXPECT_TRUE(got.empty());
  read_unsized();
  read_unsized();
  EXPECT_EQ(reader.serve(), Progress::kServed);
  EXPECT_EQ(reader.serve(), Progress::kServed);
  EXPECT_EQ(got, (std::vector<std::string>{"one", "two"}));
}

TEST_F(Reading, AFullBufferAsksForNoMore) {
  feed(frame(std::string(100'000, 'x')));
  EXPECT_TRUE(reader.room().empty());
  read_unsized();
  EXPECT_EQ(reader.serve(), Progress::kNeedsBytes);
  EXPECT_FALSE(reader.room().empty());
}

TEST_F(Reading, ASizedReadTakesItsLengthOnly) {
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{4}, uint64_t{6}, uint64_t{1} << 60, ~uint64_t{0}}) {
    FrameReader fresh{FrameLimits{}};
    std::string memory = "guard";
    fresh.push({.sized = true, .data = memory.data(), .length = 5, .on_bytes = {}});
    put(fresh, length_only(length));
    put(fresh, "overflow");
    EXPECT_EQ(fresh.serve(), Progress::kCorrupt) << length;
    EXPECT_EQ(memory, "guard");
  }
}

TEST_F(Reading, AnUnsizedReadIsBoundedBeforeItAllocates) {
  for (const uint64_t length : {uint64_t{100'001}, uint64_t{1} << 60, ~uint64_t{1}}) {
    FrameReader fresh{{.max_unsized_bytes = 100'000}};
    fresh.push({.on_bytes = [](const auto&, const void*, size_t) { FAIL(); }});
    put(fresh, length_only(length));
    EXPECT_EQ(fresh.serve(), Progress::kCorrupt) << length;
  }
}

TEST_F(Reading, AnEmptySizedFrameMeetsAnEmptyRead) {
  std::string nothing;
  read_sized(nothing);
  read_unsized();
  feed(frame("") + frame(""));
  EXPECT_EQ(got, (std::vector<std::string>{"", ""}));
}

TEST_F(Reading, AnEmptyOrMalformedObjectIsCorrupt) {
  Object good, bad(false);
  read_object(good);
  EXPECT_EQ(feed(frame("x")), Progress::kNeedsReads);
  EXPECT_EQ(got, (std::vector<std::string>{"object"}));

  read_object(bad);
  EXPECT_EQ(feed(frame("x")), Progress::kCorrupt);
  reader.fail(connection_error("test"));
  EXPECT_EQ(got, (std::vector<std::string>{"object", "error"})) << "its callback still runs, once";

  FrameReader fresh{FrameLimits{}};
  fresh.push({.object = &good, .on_object = [](const auto&) { FAIL(); }});
  put(fresh, length_only(0));
  EXPECT_EQ(fresh.serve(), Progress::kCorrupt);
}

TEST_F(Reading, TheFirstObjectOfAnAcceptedConnectionIsNeverCalledWithAnError) {
  reader.protect_first_object();
  Object bad(false), second;
  read_object(bad);
  read_object(second);
  EXPECT_EQ(feed(frame("x")), Progress::kCorrupt);
  reader.fail(connection_error("test"));
  EXPECT_EQ(got, (std::vector<std::string>{"error"})) << "the second one's";
}

TEST_F(Reading, FailingCallsEveryReadInOrder) {
  std::string memory(3, ' ');
  Object object;
  read_unsized();
  read_sized(memory);
  read_object(object);
  feed(frame("first") + length_only(3) + "a");
  reader.fail(connection_error("test"));
  EXPECT_EQ(got, (std::vector<std::string>{"first", "error", "error"}));
  EXPECT_TRUE(reader.idle());
}

TEST_F(Reading, TheFirstFrameIsWaitedForAndBounded) {
  EXPECT_EQ(reader.first_frame(), FrameReader::FirstFrame::kIncomplete);
  const std::string bytes = frame(std::string(64, 'f'));
  for (const char byte : bytes) {
    EXPECT_EQ(reader.first_frame(), FrameReader::FirstFrame::kIncomplete);
    *static_cast<char*>(reader.room()[0].data()) = byte;
    reader.arrived(1);
  }
  EXPECT_EQ(reader.first_frame(), FrameReader::FirstFrame::kComplete);

  for (const uint64_t length : {uint64_t{0}, uint64_t{65}, ~uint64_t{0}}) {
    FrameReader fresh{{.max_first_frame_bytes = 64}};
    put(fresh, length_only(length));
    EXPECT_EQ(fresh.first_frame(), FrameReader::FirstFrame::kCorrupt) << length;
  }
}

TEST(Writing, FramesGoOutInAnyPieces) {
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}, size_t{1} << 30}) {
    FrameWriter writer;
    std::vector<int> done;
    const std::vector<std::string> bodies{"one", "", std::string(5000, 'x'), "last"};
    std::string expected, sent;
    for (size_t i = 0; i < bodies.size(); ++i) {
      expected += frame(bodies[i]);
      writer.push({.length = bodies[i].size(),
                   .data = bodies[i].data(),
                   .on_written = [&done, i](const auto&) { done.push_back(static_cast<int>(i)); }});
    }
    while (!writer.idle()) {
      std::string gathered;
      for (const auto& buffer : writer.pieces())
        gathered.append(static_cast<const char*>(buffer.data()), buffer.size());
      ASSERT_FALSE(gathered.empty());
      gathered.resize(std::min(gathered.size(), piece));
      sent += gathered;
      writer.written(gathered.size());
    }
    EXPECT_EQ(sent, expected) << piece;
    EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3}));
  }
}

TEST(Writing, FailingCallsEveryWriteOnce) {
  FrameWriter writer;
  int calls = 0;
  for (int i = 0; i < 3; ++i)
    writer.push({.length = 0, .on_written = [&](const auto& error) { calls += error ? 1 : 100; }});
  writer.pieces();
  writer.written(4);
  writer.fail(connection_error("test"));
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace retort::rpc::transport::testing
