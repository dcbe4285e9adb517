#include "base/error.h"

#include <gtest/gtest.h>

#include <set>

namespace retort {
namespace {

constexpr ErrorCode kAll[] = {
    ErrorCode::kInvalidArgument, ErrorCode::kTimeout,     ErrorCode::kPeerLost,
    ErrorCode::kClosed,          ErrorCode::kCancelled,   ErrorCode::kCollective,
    ErrorCode::kRemote,          ErrorCode::kCorrupt,     ErrorCode::kUnauthenticated,
    ErrorCode::kMismatch,        ErrorCode::kUnavailable, ErrorCode::kResourceExhausted};

TEST(Error, CarriesCodeMessageOriginAndContext) {
  const int line = __LINE__ + 1;
  const Error error(ErrorCode::kTimeout, "no answer");
  const Error full = error.with("peer", "teacher/0").with("step", 120);
  EXPECT_EQ(full.code(), ErrorCode::kTimeout);
  EXPECT_EQ(full.message(), "no answer");
  EXPECT_EQ(full.origin(), "base/error_test.cc:" + std::to_string(line));
  EXPECT_EQ(full.context(), (Error::Context{{"peer", "teacher/0"}, {"step", "120"}}));
  EXPECT_STREQ(full.what(), "no answer [timeout peer=teacher/0 step=120]");
  EXPECT_STREQ(error.what(), "no answer [timeout]") << "with() leaves the original alone";
}

TEST(Error, CrossesAProcessBoundaryUnchanged) {
  const Error sent = Error(ErrorCode::kMismatch, "shapes disagree").with("expected", "[2, 3]");
  const Error received(sent.code(), sent.message(), sent.origin(), sent.context());
  EXPECT_STREQ(received.what(), sent.what());
  EXPECT_EQ(received.origin(), sent.origin());
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  for (const auto code : kAll)
    names.insert(to_string(code));
  EXPECT_EQ(names.size(), std::size(kAll));
  EXPECT_FALSE(names.count("unknown"));
  EXPECT_EQ(to_string(static_cast<ErrorCode>(250)), "unknown");
}

TEST(Error, ExitCodes) {
  for (const auto code : kAll) {
    const int expected = code == ErrorCode::kInvalidArgument ? 2
                         : code == ErrorCode::kUnavailable || code == ErrorCode::kResourceExhausted
                             ? 3
                             : 1;
    EXPECT_EQ(exit_code_for(code), expected) << to_string(code);
  }
}

TEST(CheckDeathTest, AbortsWithPlaceConditionAndMessage) {
  EXPECT_DEATH(RETORT_CHECK(1 + 1 == 3) << "sum=" << 2,
               "base/error_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3 sum=2");
}

TEST(Check, DoesNotEvaluateTheMessageWhenItHolds) {
  int evaluated = 0;
  RETORT_CHECK(true) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
}

TEST(Check, BindsAsOneStatement) {
  bool reached_else = false;
  if (false)
    RETORT_CHECK(false);
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

}  // namespace
}  // namespace retort
