// Real answers of llama.cpp's server that break on their way, cannot be, or do not come: a stated
// error within the deadline, or a wait after which the number is the right one.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engines/llamacpp/real_server.h"
#include "tests/engines/llamacpp/rewrites.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using retort::test::Peer, retort::test::Received, retort::test::expect_error;
using test::Passing, test::Proxying, test::RealServer, test::RewritingProxy, test::TinyModel,
    test::soon;

const ScoreRequest kQuestion{.token_ids = {10, 20, 30, 320, 47}, .positions = {1, 3}, .top_k = 4};

class BrokenAnswers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::engines_python()) return;
    const TinyModel model;
    server_ = new RealServer(model.gguf());
    right_ = new std::vector<float>(server_->engine()->score(kQuestion, soon()).get().given);
  }
  static void TearDownTestSuite() {
    delete right_;
    delete server_;
  }
  void SetUp() override {
    if (!test::engines_python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON is not set";
  }

  using Answered = std::function<void(json&)>;
  using Instead = std::function<bool(Peer&, const Passing&)>;

  // Expects an error whose text has `part` if `change` is made to each answer.
  static void expect_refused(const std::string& part, Answered change) {
    Proxying how;
    how.answered = [&](const json&, json& answer) { change(answer); };
    const RewritingProxy proxy(server_->url(), std::move(how));
    const auto engine = proxy.engine();
    expect_error(ErrorCode::kCorrupt, part, [&] { engine->score(kQuestion, soon()).get(); });
    expect_error(ErrorCode::kCorrupt, proxy.url(), [&] { engine->score(kQuestion, soon()).get(); });
  }
  static void expect_error_of(ErrorCode code, const std::string& part, Instead instead,
                              Duration timeout = 60s) {
    Proxying how;
    how.instead = std::move(instead);
    const RewritingProxy proxy(server_->url(), std::move(how));
    const auto engine = proxy.engine(timeout);
    expect_error(code, part, [&] { engine->score(kQuestion, soon()).get(); });
  }
  // That the question is answered as if nothing had been, whatever happened on the way.
  static void expect_right(Engine& engine) {
    const std::vector<float> given = engine.score(kQuestion, soon()).get().given;
    ASSERT_EQ(given.size(), right_->size());
    // Numbers of a cached prefix differ from others by as much as float32 rounds.
    for (size_t i = 0; i < given.size(); ++i)
      EXPECT_NEAR(given[i], right_->at(i), 1e-4);
  }

  static RealServer* server_;
  static std::vector<float>* right_;
};
RealServer* BrokenAnswers::server_ = nullptr;
std::vector<float>* BrokenAnswers::right_ = nullptr;

TEST_F(BrokenAnswers, UnchangedOnesAreRight) {
  expect_right(*RewritingProxy(server_->url()).engine());
}

TEST_F(BrokenAnswers, NumbersThatCannotBe) {
  expect_refused("is null: NaN", [](json& answer) {
    test::each_log_prob(answer, [](json& value) { value = std::nan(""); });
  });
  expect_refused("above 0", [](json& answer) {
    test::each_log_prob(answer, [](json& value) { value = 0.25; });
  });
  expect_refused("logprob", [](json& answer) {
    test::each_log_prob(answer, [](json& value) { value = "-0.25"; });
  });
  // probabilities that add up to more than 1
  expect_refused("add up to 3.1", [](json& answer) {
    test::each_log_prob(answer, [](json& value) { value = -0.25; });
  });
}

TEST_F(BrokenAnswers, WrongCounts) {
  const auto first = [](json& answer) -> json& { return answer["completion_probabilities"][0]; };
  expect_refused("top_logprobs has 3",
                 [&](json& answer) { first(answer)["top_logprobs"].erase(3); });
  expect_refused("completion_probabilities has 2", [&](json& answer) {
    const json again = first(answer);
    answer["completion_probabilities"].push_back(again);
  });
  expect_refused("tokens has 2", [](json& answer) { answer["tokens"].push_back(3); });
  expect_refused("tokens has 0", [](json& answer) { answer["tokens"].clear(); });
  expect_refused("twice", [&](json& answer) {
    first(answer)["top_logprobs"][1]["id"] = first(answer)["top_logprobs"][0]["id"];
  });
  expect_refused("416", [&](json& answer) { first(answer)["top_logprobs"][1]["id"] = 416; });
  expect_refused("is missing", [](json& answer) { answer.erase("tokens"); });
}

TEST_F(BrokenAnswers, NoJson) {
  const auto body = [](const std::string& reply) {
    return reply.substr(reply.find("\r\n\r\n") + 4);
  };
  expect_error_of(ErrorCode::kCorrupt, "no JSON", [&](Peer& peer, const Passing& passing) {
    const std::string whole = body(passing.reply);
    return peer.write(retort::test::reply(200, whole.substr(0, whole.size() / 2)));
  });
  expect_error_of(ErrorCode::kCorrupt, "<html>", [](Peer& peer, const Passing&) {
    return peer.write(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 22\r\n\r\n"
        "<html>Welcome!</html>\n");
  });
  // of a balancer that lost its server
  expect_error_of(ErrorCode::kUnavailable, "Bad Gateway", [](Peer& peer, const Passing&) {
    return peer.write(retort::test::reply(502, "<html>Bad Gateway</html>"));
  });
  expect_error_of(ErrorCode::kMismatch, "gzip", [](Peer& peer, const Passing&) {
    // 10 KB of which a decoder would make 10 MB
    return peer.write(retort::test::reply(200, "\x1f\x8b\x08" + std::string(10'000, '\0'),
                                          "Content-Encoding: gzip\r\n"));
  });
}

// A body that is far too long is not read to its end, whether it says so or not.
TEST_F(BrokenAnswers, Gigabytes) {
  std::atomic<int64_t> written{0};
  const auto pour = [&](Peer& peer, const std::string& before, const std::string& after) {
    const std::string piece = before + std::string(1 << 16, ' ') + after;
    while (written < (int64_t{1} << 30) && peer.write(piece))
      written += 1 << 16;
    return true;
  };
  expect_error_of(ErrorCode::kResourceExhausted, "is this llama.cpp's server?",
                  [&](Peer& peer, const Passing&) {
                    peer.write("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
                    return pour(peer, "", "");
                  });
  expect_error_of(ErrorCode::kResourceExhausted, "is this llama.cpp's server?",
                  [&](Peer& peer, const Passing&) {
                    peer.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                    return pour(peer, "10000\r\n", "\r\n");
                  });
  EXPECT_LT(written, int64_t{64} << 20);
}

TEST_F(BrokenAnswers, ConnectionsThatBreak) {
  // The question goes again; after three times the server is not there.
  std::atomic<int> breaks{0};
  Proxying how;
  how.instead = [&](Peer&, const Passing&) { return breaks++ < 2; };
  const RewritingProxy twice(server_->url(), std::move(how));
  expect_right(*twice.engine());
  EXPECT_EQ(twice.completions(), 4) << "two that broke, one for each position";

  for (const bool halfway : {false, true}) {
    Proxying always;
    always.instead = [=](Peer& peer, const Passing& passing) {
      if (halfway) peer.write(passing.reply.substr(0, passing.reply.size() - 10));
      return true;
    };
    const RewritingProxy proxy(server_->url(), std::move(always));
    const auto engine = proxy.engine();
    const Error error = retort::test::error_of([&] { engine->score(kQuestion, soon()).get(); });
    EXPECT_EQ(error.code(), halfway ? ErrorCode::kCorrupt : ErrorCode::kUnavailable)
        << error.what();

    // A draw may have been made: who asked decides about another.
    const int64_t before = proxy.completions();
    EXPECT_THROW(engine->draw({.prompt = {10, 20}, .how = {.max_new_tokens = 2}}, soon()).get(),
                 Error);
    EXPECT_EQ(proxy.completions(), before + 1);
  }
}

// No answer, and one that comes by the byte: the time of one request ends both.
TEST_F(BrokenAnswers, AnswersThatDoNotEnd) {
  expect_error_of(
      ErrorCode::kTimeout, "",
      [](Peer& peer, const Passing&) {
        peer.wait_closed();
        return true;
      },
      300ms);
  expect_error_of(
      ErrorCode::kTimeout, "",
      [](Peer& peer, const Passing& passing) {
        for (size_t i = 0; i < passing.reply.size() && peer.write(passing.reply.substr(i, 1)); ++i)
          std::this_thread::sleep_for(20ms);
        return true;
      },
      300ms);
}

// A busy server is waited for, for as long as the question has.
TEST_F(BrokenAnswers, BusyServersAreWaitedFor) {
  for (const std::string after : {"", "Retry-After: 1\r\n"})
    for (const int status : {429, 503}) {
      std::atomic<int> storm{0};
      Proxying how;
      how.instead = [&](Peer& peer, const Passing&) {
        if (storm++ >= 2) return false;
        return peer.write(retort::test::reply(status, "busy", after));
      };
      const RewritingProxy proxy(server_->url(), std::move(how));
      expect_right(*proxy.engine());
      EXPECT_EQ(proxy.completions(), 4);
    }

  for (const std::string after : {"", "Retry-After: 3600\r\n"}) {
    Proxying how;
    how.instead = [&](Peer& peer, const Passing&) {
      return peer.write(retort::test::reply(429, "busy", after));
    };
    const RewritingProxy proxy(server_->url(), std::move(how));
    const auto engine = proxy.engine();
    const Error error = retort::test::error_of(
        [&] { engine->score(kQuestion, Deadline::after(5s)).get(Deadline::after(30s)); });
    EXPECT_TRUE(error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("429"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace retort::engines
