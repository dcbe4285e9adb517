// What a launcher says while nobody reads it.
#include "launch/writers/stderr_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ostream>
#include <thread>
#include <vector>

#include "base/process/pipe.h"

namespace retort::test {
namespace {

using launch::StderrWriter;

class UnreadStderr : public testing::Test {
 protected:
  UnreadStderr() : pipe_(make_pipe()) {
    ::fcntl(pipe_.in.get(), F_SETPIPE_SZ, 4096);
    // Nothing of what follows finds room.
    EXPECT_EQ(::write(pipe_.in.get(), filling_.data(), filling_.size()), 4096);
    ::fcntl(pipe_.out.get(), F_SETFL, O_NONBLOCK);
  }

  std::string read_some() {
    char bytes[1 << 16];
    const ssize_t got = ::read(pipe_.out.get(), bytes, sizeof bytes);
    return got > 0 ? std::string(bytes, static_cast<size_t>(got)) : "";
  }
  // Until `end` has come.
  std::string read_until(const std::string& end) {
    std::string text;
    for (int tried = 0; tried < 5000 && text.find(end) == std::string::npos; ++tried) {
      text += read_some();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return text;
  }

  const std::string filling_ = std::string(4096, '.');
  Pipe pipe_;
};

TEST_F(UnreadStderr, NoCallWaitsAndWhatIsLeftOutIsCounted) {
  StderrWriter writer({.fd = pipe_.in.get(), .capacity = 1000, .last_wait = Duration(50)});
  std::string line(399, 'x');
  line += '\n';
  for (int i = 0; i < 7; ++i)
    writer.write(line);  // two fit
  writer.drain();        // gives up
  const std::string text = read_until("nobody read them)\n");
  EXPECT_EQ(text, filling_ + line + line + "(5 lines were left out: nobody read them)\n");
  writer.write("at last\n");
  EXPECT_EQ(read_until("at last\n"), "at last\n");
}

TEST_F(UnreadStderr, TheNextLineSaysHowManyAreMissing) {
  StderrWriter writer({.fd = pipe_.in.get(), .capacity = 10, .last_wait = Duration(10'000)});
  for (const char* line : {"one\n", "two\n", "three\n", "four\n"})
    writer.write(line);
  EXPECT_EQ(read_until("two\n"), filling_ + "one\ntwo\n");
  // Once all of it is written there is room again.
  std::string text;
  for (int tried = 0; tried < 5000 && text.empty(); ++tried) {
    writer.write("five\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    text = read_some();
  }
  EXPECT_TRUE(text.starts_with("(")) << text;
  EXPECT_NE(text.find(" lines were left out: nobody read them)\nfive\n"), std::string::npos)
      << text;
}

// Why a run failed is said on std::cerr: warnings that nobody reads must not be in its place.
TEST_F(UnreadStderr, WhatAStreamIsGivenIsNeverLeftOut) {
  StderrWriter writer({.fd = pipe_.in.get(), .capacity = 10, .last_wait = Duration(50)});
  std::ostream stream(&writer.stream_buffer());
  writer.write("a warning\n");
  writer.write("another\nof two lines\n");
  writer.write("a third\n");
  stream << "the run failed:\n  student/0 ran out of memory\n";
  stream << "retort: error: it has no end";
  writer.drain();  // gives up
  std::string expected(4096, '.');
  expected.append(
      "a warning\n(3 lines were left out: nobody read them)\n"
      "the run failed:\n  student/0 ran out of memory\n"
      "retort: error: it has no end");
  EXPECT_EQ(read_until("no end"), expected);
}

// std::cerr is written in pieces and from several threads, but lines stay whole.
TEST_F(UnreadStderr, AStreamGivesWholeLines) {
  StderrWriter writer({.fd = pipe_.in.get(), .capacity = 1 << 16, .last_wait = Duration(50)});
  std::ostream stream(&writer.stream_buffer());
  stream << "note: " << 7 << " hosts";
  read_some();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(read_some(), "") << "half a line is kept";
  writer.write("a line of the log\n");
  stream << std::endl << "second\n";
  EXPECT_EQ(read_until("second\n"), "a line of the log\nnote: 7 hosts\nsecond\n");
}

}  // namespace
}  // namespace retort::test
