// A service as a reward, and the client of http/ under it, against a real server on this host.
#include "tests/rewards/http_server.h"

#include <chrono>

#include "base/deadline.h"
#include "tests/rewards/reward_support.h"

namespace retort::rewards {
namespace {
using std::chrono::milliseconds, std::chrono::seconds;
using test::error_of, test::input_of;

class HttpTest : public testing::Test {
 protected:
  RewardSet set_of(const std::string& path, Duration timeout = seconds(60)) {
    return RewardSet(std::vector<RewardOptions>{{.type = RewardType::kHttp,
                                                 .name = "judge",
                                                 .url = server_.url(path),
                                                 .timeout = timeout}});
  }
  Error failure(const std::string& path, Duration timeout = seconds(60)) {
    RewardSet set = set_of(path, timeout);
    return error_of([&] { set.score({input_of("a"), input_of("b")}); });
  }
  test::HttpServer server_;
};

TEST_F(HttpTest, ScoresBatches) {
  RewardSet set = set_of("/score?kind=length");
  for (int batch = 0; batch < 2; ++batch) {
    const auto scored = set.score({input_of("a"), input_of("null"), input_of("abc")});
    EXPECT_EQ(scored[0].total, 1.0);
    EXPECT_EQ(scored[1].total, std::nullopt);
    EXPECT_EQ(scored[2].total, 3.0);
  }
  EXPECT_EQ(server_.last_request(),
            "POST /score?kind=length " + server_.url("").substr(7) + " application/json");
  EXPECT_EQ(set_of("/chunked").score({input_of("a"), input_of("b")})[1].total, 2.0);
}

TEST_F(HttpTest, BigBatches) {
  RewardSet set = set_of("/score?kind=length");
  std::vector<RewardInput> many;
  for (size_t i = 0; i < 2000; ++i)
    many.push_back(input_of(std::string(3000 + i, 'c')));
  const auto scored = set.score(many);
  for (size_t i = 0; i < many.size(); ++i)
    ASSERT_EQ(scored[i].total, static_cast<double>(3000 + i)) << i;
}

TEST_F(HttpTest, WhatIsNoAnswerIsAnError) {
  const struct {
    const char* path;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {"/500", ErrorCode::kUnavailable, "status 500, expected 2xx: 'out of memory\\nmmm"},
      {"/204", ErrorCode::kUnavailable, "status 204"},
      {"/moved", ErrorCode::kInvalidArgument, "redirected to '/score?...'"},
      {"/count", ErrorCode::kCorrupt, "the answer has 1 scores for 2 completions"},
      {"/rubbish", ErrorCode::kCorrupt,
       "no list of scores; expected {\"scores\": [NUMBER or null, ...]}: '<html>It works!</html>'"},
      {"/object", ErrorCode::kCorrupt, "no list of scores"},
      {"/array", ErrorCode::kCorrupt, "no list of scores"},
      {"/text", ErrorCode::kCorrupt, "a score is string"},
      {"/nan", ErrorCode::kCorrupt, "no list of scores"},
      {"/not-http", ErrorCode::kCorrupt, "the answer is no HTTP"},
      {"/cut", ErrorCode::kCorrupt, "the answer ends too early"},
      {"/close", ErrorCode::kUnavailable, "before an answer"},
  };

  for (const auto& c : cases) {
    const Error error = failure(c.path);
    const std::string& message = error.message();
    EXPECT_EQ(error.code(), c.code) << c.path << ": " << message;
    EXPECT_TRUE(message.starts_with("reward 'judge': http://127.0.0.1:")) << message;
    EXPECT_NE(message.find(c.part), std::string::npos) << c.path << ": " << message;
    EXPECT_LT(message.size(), 500u) << c.path;
  }
}

TEST_F(HttpTest, TheDeadlineHolds) {
  for (const char* path : {"/hang", "/loris"}) {
    const auto start = Deadline::Clock::now();
    const Error error = failure(path, milliseconds(300));
    const std::string& message = error.message();
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << path << ": " << message;
    EXPECT_NE(message.find("no complete answer to 2 completions after 300ms"), std::string::npos)
        << message;
    EXPECT_GE(Deadline::Clock::now() - start, milliseconds(290)) << path;
    EXPECT_LT(Deadline::Clock::now() - start, seconds(20)) << path;
  }
}

TEST_F(HttpTest, NoServiceIsAnError) {
  std::string url;
  {
    const test::HttpServer gone;
    url = gone.url("/");
  }
  RewardSet set(
      std::vector<RewardOptions>{{.type = RewardType::kHttp, .name = "judge", .url = url}});
  const std::string message =
      test::message_of([&] { set.score({input_of("a")}); }, ErrorCode::kUnavailable);
  EXPECT_NE(message.find("connecting: Connection refused"), std::string::npos) << message;
}

}  // namespace
}  // namespace retort::rewards
