// What a launcher and a host say to each other, and bytes that are no such thing.
#include "launch/ssh/host_frames.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/process/pipe.h"
#include "launch/ssh/frame_stream.h"
#include "launch/ssh/host_version.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using launch::FromHost;
using launch::FromHostKind;
using launch::ToHost;
using launch::ToHostKind;

// A stream that reads what it, or the test, has written.
class Loop {
 public:
  Loop() : Loop(make_pipe()) {}
  launch::FrameStream stream;
  void write(std::string_view bytes) {
    ASSERT_EQ(::write(stream.out(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }

 private:
  explicit Loop(Pipe pipe) : stream(std::move(pipe.out), std::move(pipe.in)) {}
};

TEST(HostFrames, ArriveAfterTheGreetingsOfAShell) {
  Loop loop;
  loop.write("Welcome to h2\n\nYou have mail.\n");
  loop.stream.send_line(launch::version_line());
  loop.stream.send(rpc::to_bytes(FromHost{.kind = FromHostKind::kStarted, .id = 7, .number = 99}));
  ASSERT_TRUE(loop.stream.flush());
  ASSERT_TRUE(loop.stream.fill());
  EXPECT_EQ(loop.stream.line(launch::kVersionBeginning), launch::version_line());
  const auto frame = loop.stream.next();
  ASSERT_TRUE(frame);
  const FromHost started = launch::read_from_host(*frame);
  EXPECT_EQ(started.kind, FromHostKind::kStarted);
  EXPECT_EQ(started.id, 7u);
  EXPECT_EQ(started.number, 99);
  EXPECT_FALSE(loop.stream.next());
}

TEST(HostFrames, AnAnnouncedGiantIsRefusedBeforeItIsRead) {
  Loop loop;
  loop.write("\xff\xff\xff\x7f");
  ASSERT_TRUE(loop.stream.fill());
  expect_error(ErrorCode::kCorrupt, "is announced", [&] { loop.stream.next(); });
}

TEST(HostFrames, HalfAFrameIsNone) {
  Loop loop;
  loop.write(
      std::string_view("\x05\x00\x00\x00"
                       "abc",
                       7));
  ASSERT_TRUE(loop.stream.fill());
  EXPECT_FALSE(loop.stream.next());
  loop.write("de");
  ASSERT_TRUE(loop.stream.fill());
  EXPECT_EQ(loop.stream.next(), "abcde");
}

// As many as a stream holds: taking each from the front must not move all that follow it.
TEST(HostFrames, ManySmallOnesAreTakenInOrder) {
  Loop loop;
  constexpr uint32_t kFrames = 120'000;
  for (uint32_t i = 0; i < kFrames; ++i)
    loop.stream.send({reinterpret_cast<const char*>(&i), sizeof i});
  while (loop.stream.unsent() > 0) {
    ASSERT_TRUE(loop.stream.flush());
    ASSERT_TRUE(loop.stream.fill());
  }
  for (uint32_t i = 0; i < kFrames; ++i) {
    const auto frame = loop.stream.next();
    ASSERT_TRUE(frame) << i;
    ASSERT_EQ(*frame, std::string(reinterpret_cast<const char*>(&i), sizeof i));
  }
  EXPECT_FALSE(loop.stream.next());
}

TEST(HostFrames, TheEndOfTheOtherEndIsNoticed) {
  Loop loop;
  loop.stream.send("last");
  ASSERT_TRUE(loop.stream.flush());
  loop.stream.close_out();
  EXPECT_FALSE(loop.stream.fill());
  EXPECT_EQ(loop.stream.next(), "last") << "what came before the end is lost";
}

TEST(HostFrames, ImpossibleOnesAreCorrupt) {
  const auto refuse = [](const ToHost& frame, const std::string& what) {
    expect_error(ErrorCode::kCorrupt, what, [&] { launch::read_to_host(rpc::to_bytes(frame)); });
  };
  refuse({.kind = ToHostKind::kStart}, "its process");
  refuse({.kind = ToHostKind::kBeat, .id = 3}, "its process");
  refuse({.kind = ToHostKind::kPlace, .interval_ms = 1000}, "its times");
  refuse({.kind = ToHostKind::kSignal, .id = 3, .number = 64}, "its signal");
  refuse({.kind = ToHostKind::kSignal, .id = 3, .number = -9}, "its signal");
  refuse({.kind = ToHostKind::kExamine}, "its question");
  refuse({.kind = ToHostKind::kBeat, .question = "?"}, "its question");
  expect_error(ErrorCode::kCorrupt, "its process", [] {
    launch::read_from_host(rpc::to_bytes(FromHost{.kind = FromHostKind::kEnded}));
  });
  expect_error(ErrorCode::kCorrupt, "", [] { launch::read_from_host("abc"); });
}

// What makes two programs the same.
TEST(HostFrames, TheVersionLineNamesTheBuild) {
  const std::string line = launch::version_line();
  EXPECT_TRUE(line.starts_with("retort-host 1 retort ")) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const size_t at = line.find(", build ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(line.size() - at, 8u + 40) << line;
}

}  // namespace
}  // namespace retort::test
