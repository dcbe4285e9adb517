#include "base/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace retort {
namespace {

TEST(Log, LineHasLevelTimeIdentityPlaceAndText) {
  set_log_identity("teacher/1");
  testing::internal::CaptureStderr();
  RETORT_LOG(kWarning) << "call done id=" << 7;
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_identity("-");
  EXPECT_TRUE(std::regex_match(
      text,
      std::regex(R"(W \d\d:\d\d:\d\d\.\d{6} teacher/1 base/log_test\.cc:\d+\] call done id=7\n)")))
      << text;
}

TEST(Log, JsonLineIsOneObject) {
  set_log_identity("teacher/1");
  set_log_format(LogFormat::kJson);
  set_log_step(40);
  testing::internal::CaptureStderr();
  RETORT_LOG(kError) << "it said \"no\"\nand ended";
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_format(LogFormat::kText);
  set_log_identity("-");
  EXPECT_TRUE(std::regex_match(
      text, std::regex(R"(\{"time": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "level": "error", )"
                       R"("host": "[^"]+", "role": "teacher", "rank": 1, "step": 40, )"
                       R"("where": "base/log_test\.cc:\d+", )"
                       R"("message": "it said \\"no\\"\\nand ended"\}\n)")))
      << text;
}

// What a stranger sent is in many messages: it forges nothing on the terminal of who reads them.
TEST(Log, ControlCharactersAreWrittenAsEscapes) {
  testing::internal::CaptureStderr();
  RETORT_LOG(kInfo) << "vllm \x1b]0;owned\a serves\rI 00:00 forged\n  a second line";
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(
      text.ends_with("] vllm \\x1b]0;owned\\x07 serves\\rI 00:00 forged\n  a second line\n"))
      << text;
}

struct KeptLines : LogSink {
  void write(const std::string& line) override { lines.push_back(line); }
  void drain() override { ++drained; }
  std::vector<std::string> lines;
  int drained = 0;
};

TEST(Log, ASinkTakesTheLinesInsteadOfStderr) {
  static KeptLines sink;
  testing::internal::CaptureStderr();
  set_log_sink(&sink);
  RETORT_LOG(kInfo) << "kept";
  drain_log();
  set_log_sink(nullptr);
  RETORT_LOG(kInfo) << "printed";
  const std::string text = testing::internal::GetCapturedStderr();
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_TRUE(sink.lines[0].ends_with("] kept\n")) << sink.lines[0];
  EXPECT_EQ(sink.drained, 1);
  EXPECT_EQ(text.find("kept"), std::string::npos) << text;
  EXPECT_NE(text.find("printed"), std::string::npos) << text;
}

TEST(Log, ABelowThresholdLineIsNotEvenFormatted) {
  ASSERT_FALSE(log_enabled(LogLevel::kDebug)) << "RETORT_LOG=debug is set";
  int evaluated = 0;
  testing::internal::CaptureStderr();
  RETORT_LOG(kDebug) << ++evaluated;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(evaluated, 0);
}

TEST(Log, LinesOfThreadsDoNotMix) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  const std::string body(300, 'x');
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kLines; ++i)
        RETORT_LOG(kInfo) << body;
    });
  for (auto& thread : threads)
    thread.join();
  std::istringstream lines(testing::internal::GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.substr(0, 2), "I ");
    ASSERT_TRUE(line.ends_with("] " + body));
    ASSERT_LT(line.size(), 400u) << "two lines in one";
  }
  EXPECT_EQ(count, kThreads * kLines);
}

}  // namespace
}  // namespace retort
