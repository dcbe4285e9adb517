// What happens to requests on their way to SGLang: busy servers, broken connections, and draws that
// are given up.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "tests/engines/sglang_recordings.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using nlohmann::json;
using test::soon;

// No question gets a connection that another had: a client may send it anew on its own there.
constexpr const char* kClosing = "Connection: close\r\n";

// A server that knows itself, and does with draws and scores what a test says; requests to abort
// are kept.
class Server {
 public:
  using Script = std::function<void(test::Peer&, const test::Received&)>;
  // `answers`: by name, those of RecordedSglang. `script`: gets each question.
  Server(std::map<std::string, std::string> answers, Script script)
      : answers_(std::move(answers)),
        script_(std::move(script)),
        server_([this](test::Peer& peer) { serve(peer); }) {}

  std::string url() const { return server_.url(); }
  std::string url_of(const std::string& host) const { return server_.url_of(host); }
  int num_questions() const { return num_questions_; }

  // The names of the question that came, and of the one that is to be aborted, once there is one.
  std::string asked() { return wait(asked_); }
  std::string aborted() { return wait(aborted_); }
  bool has_aborted() {
    const std::lock_guard lock(mutex_);
    return aborted_.has_value();
  }

 private:
  void serve(test::Peer& peer) {
    while (const auto received = peer.read()) {
      if (received->target == "/abort_request") {
        keep(aborted_, json::parse(received->body).at("rid"));
        peer.write(test::reply(200, "", kClosing));
        return;
      }
      if (const auto answer = answers_.find(name_of(*received)); answer != answers_.end()) {
        peer.write(answer->second);
        return;
      }
      ++num_questions_;
      keep(asked_, json::parse(received->body).at("rid"));
      script_(peer, *received);
    }
  }
  static std::string name_of(const test::Received& received) {
    if (received.target == "/model_info") return "model";
    if (received.target == "/server_info") return "server";
    const json params = json::parse(received.body).at("sampling_params");
    return params.at("logit_bias").contains("2147483647") ? "vocabulary" : "question";
  }

  void keep(std::optional<std::string>& where, const std::string& rid) {
    const std::lock_guard lock(mutex_);
    where = rid;
    changed_.notify_all();
  }
  std::string wait(const std::optional<std::string>& where) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, soon().remaining(), [&] { return where.has_value(); });
    EXPECT_TRUE(there);
    return where.value_or("");
  }

  const std::map<std::string, std::string> answers_;
  const Script script_;
  std::atomic<int> num_questions_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> asked_, aborted_;
  test::ScriptedServer server_;
};

class SglangWay : public test::RecordedSglang {
 protected:
  std::unique_ptr<Server> serving(Server::Script script) const {
    std::map<std::string, std::string> answers;
    for (const std::string& name : first()) {
      answers[name] = exchange(name).reply();
      answers[name].insert(answers[name].find("\r\n") + 2, kClosing);
    }
    return std::make_unique<Server>(std::move(answers), std::move(script));
  }
  std::string answer_to(const test::Received& received, const std::string& name) const {
    std::string body = exchange(name).answer.at("body").get<std::string>();
    const auto rid = json::parse(received.body).at("rid").get<std::string>();
    body.replace(body.find("${rid}"), 6, rid);
    return test::reply(200, body);
  }
  static void never(test::Peer& peer, const test::Received&) { peer.wait_closed(); }
};

TEST_F(SglangWay, BusyServersAreAskedAgain) {
  std::atomic<int> num_refused = 0;
  const auto busy = serving([&](test::Peer& peer, const test::Received& received) {
    const int status = num_refused == 0 ? 429 : 503;
    peer.write(++num_refused <= 2 ? test::reply(status, "", "Retry-After: 0\r\n")
                                  : answer_to(received, "score-given"));
  });
  const auto engine = make_at(busy->url());
  EXPECT_EQ(engine->score(score({0, 2, 3, 7}, 0), soon()).get().given.size(), 4u);
  EXPECT_EQ(busy->num_questions(), 3);
}

TEST_F(SglangWay, AnswersThatBreakOff) {
  const auto server = serving([&](test::Peer& peer, const test::Received& received) {
    const std::string whole = answer_to(received, "score-given");
    peer.write(whole.substr(0, whole.size() - 200));
    peer.close();
  });
  const auto engine = make_at(server->url());
  test::expect_error(ErrorCode::kCorrupt, "ends too early", [&] {
    engine->score(score({0, 2, 3, 7}, 0), soon()).get();
  });
}

// A score is asked once more, by another name, when its connection breaks; a draw is not, but
// aborted.
TEST_F(SglangWay, BrokenConnections) {
  const auto breaking = serving([](test::Peer& peer, const test::Received&) { peer.close(); });
  const auto engine = make_at(breaking->url());
  test::expect_error(ErrorCode::kUnavailable, "closed by the server",
                     [&] { engine->score(score({7}, 0), soon()).get(); });
  EXPECT_EQ(breaking->num_questions(), 2);
  EXPECT_FALSE(breaking->has_aborted());
  test::expect_error(ErrorCode::kUnavailable, "closed by the server",
                     [&] { engine->draw(draw(), soon()).get(); });
  EXPECT_EQ(breaking->num_questions(), 3);
  EXPECT_EQ(breaking->aborted(), breaking->asked());
}

TEST_F(SglangWay, DrawsThatAreCancelledAreAborted) {
  const auto slow = serving(never);
  const auto engine = make_at(slow->url());
  Future<Drawn> drawn = engine->draw(draw(), soon());
  const std::string rid = slow->asked();
  EXPECT_FALSE(slow->has_aborted());
  drawn.cancel();
  EXPECT_EQ(slow->aborted(), rid);
  test::expect_error(ErrorCode::kCancelled, "", [&] { drawn.get(); });
}

TEST_F(SglangWay, DrawsThatTakeTooLongAreAborted) {
  const auto slow = serving(never);
  const auto engine = make_at(slow->url());
  test::expect_error(ErrorCode::kInvalidArgument, "top_k",
                     [&] { engine->score(score({7}, 1000), soon()).get(); });
  const auto moment = Deadline::after(std::chrono::milliseconds(300));
  test::expect_error(ErrorCode::kTimeout, "", [&] { engine->draw(draw(), moment).get(); });
  EXPECT_EQ(slow->aborted().substr(0, 7), "retort-");
}

// 0.0.0.0 is this host too, but nothing says that nobody else hears it. One request at a time: an
// abort of the first draw would come before the third.
TEST_F(SglangWay, TheDoorToAbortIsAnAdministrativeOne) {
  const auto breaking = serving([](test::Peer& peer, const test::Received&) { peer.close(); });
  const auto engine_that = [&](bool allowed) {
    return make_at(breaking->url_of("0.0.0.0"), {.allow_plain_admin = allowed, .max_inflight = 1});
  };
  const auto draw_from = [&](Engine& engine) {
    test::expect_error(ErrorCode::kUnavailable, "closed by the server",
                       [&] { engine.draw(draw(), soon()).get(); });
  };

  const auto closed = engine_that(false);
  for (int i = 0; i < 3; ++i)
    draw_from(*closed);
  EXPECT_EQ(breaking->num_questions(), 3);
  EXPECT_FALSE(breaking->has_aborted());

  const auto open = engine_that(true);
  draw_from(*open);
  EXPECT_EQ(breaking->aborted().substr(0, 7), "retort-");
}

TEST_F(SglangWay, EndsWithTheEngine) {
  const test::ScriptedServer silent([](test::Peer& peer) { peer.wait_closed(); });
  auto engine = make_at(silent.url());
  Future<Drawn> drawn = engine->draw(draw(), soon());
  Future<EngineState> state = engine->state(soon());
  engine.reset();
  test::expect_error(ErrorCode::kClosed, "closed", [&] { drawn.get(); });
  test::expect_error(ErrorCode::kClosed, "closed", [&] { state.get(); });
}

}  // namespace
}  // namespace retort::engines
