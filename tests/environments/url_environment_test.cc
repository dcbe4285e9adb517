// A service as an environment: the lines of the protocol by HTTP, and what a server should not say.
#include "environments/url_environment.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "environments/make_environment.h"
#include "tests/environments/episodes.h"
#include "tests/http/scripted_server.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::environments {
namespace {
using std::chrono::milliseconds, std::chrono::seconds;
using test::close_episode, test::error_of, test::kEchoCall, test::open_episode, test::patience,
    test::Received, test::reply, test::step_episode, test::turn_of;
using Json = nlohmann::ordered_json;

EnvironmentOptions at(const std::string& url) {
  EnvironmentOptions options;
  options.url = url;
  options.start_timeout = seconds(60);
  return options;
}

// What a service that has nothing to hide answers.
std::string honest_answer(const Json& request) {
  if (request.contains("retort_environment"))
    return R"({"retort_environment": 1, "user_turns": true})";
  if (request.contains("open"))
    return Json{{"open", request["open"]}, {"append", request["row"].value("text", "")}}.dump();
  if (request.contains("close")) return Json{{"close", request["close"]}, {"reward", 0.5}}.dump();
  Json messages = Json::array();
  for (const Json& call : request["calls"])
    messages.push_back(
        {{"role", "tool"}, {"name", call["name"]}, {"content", call["arguments"].dump()}});
  return Json{{"step", request["step"]}, {"messages", messages}, {"done", messages.empty()}}.dump();
}

class UrlEnvironmentTest : public test::FolderTest {
 protected:
  // A server that answers steps by `step`, and all else as it should.
  using Answer = std::function<std::string(const Json& request)>;
  static test::ScriptedServer::Script serving(Answer step) {
    return test::answer_all([step](const Received& received) {
      const Json request = Json::parse(received.body);
      return request.contains("step") ? step(request) : reply(200, honest_answer(request));
    });
  }
  static std::unique_ptr<roles::Environment> start(const test::ScriptedServer& server,
                                                   Duration timeout = seconds(60)) {
    return make_environment("tools/0", at(server.url("/env")), timeout);
  }
};

TEST_F(UrlEnvironmentTest, PlaysEpisodes) {
  std::mutex mutex;
  std::vector<Received> received;
  const test::ScriptedServer server(test::answer_all([&](const Received& one) {
    const std::lock_guard lock(mutex);
    received.push_back(one);
    return reply(200, honest_answer(Json::parse(one.body)));
  }));
  put(folder_ / "key", "sesame\n");
  std::filesystem::permissions(folder_ / "key", std::filesystem::perms::owner_read);
  EnvironmentOptions options = at(server.url("/env"));
  options.api_key_file = folder_ / "key";
  options.episodes = 200;
  const auto environment = make_environment("tools/0", options, seconds(120));
  const roles::EnvironmentInfo info = environment->info();
  EXPECT_EQ(info.name, "tools/0");
  EXPECT_TRUE(info.user_turns);
  EXPECT_EQ(info.episodes, 200);

  // All beside each other.
  std::vector<Future<roles::OpenedEpisode>> opened;
  for (uint64_t i = 0; i < 200; ++i)
    opened.push_back(environment->open(
        {.episode = i, .seed = i, .row = R"({"text": ")" + std::to_string(i) + "\"}"}));
  EXPECT_EQ(error_of([&] { open_episode(*environment, 200); }).code(),
            ErrorCode::kResourceExhausted);
  for (uint64_t i = 0; i < 200; ++i)
    EXPECT_EQ(opened[i].get(patience()).append, std::to_string(i));
  const auto answer = step_episode(*environment, 7, 1, kEchoCall);
  EXPECT_EQ(answer.messages, R"([{"role":"tool","name":"echo","content":"{\"b\":1,\"a\":[2]}"}])");
  EXPECT_TRUE(step_episode(*environment, 7, 2).done);
  for (uint64_t i = 0; i < 200; ++i)
    EXPECT_EQ(close_episode(*environment, i).reward, 0.5);

  // Numbers on the wire are nobody else's.
  std::map<uint64_t, int> numbers;
  const std::lock_guard lock(mutex);
  for (const Received& one : received) {
    EXPECT_EQ(one.method + " " + one.target, "POST /env");
    EXPECT_EQ(one.headers.at("authorization"), "Bearer sesame");
    EXPECT_EQ(one.headers.at("content-type"), "application/json");
    const Json request = Json::parse(one.body);
    if (request.contains("open")) ++numbers[request["open"].get<uint64_t>()];
  }
  EXPECT_EQ(numbers.size(), 200u);
  EXPECT_LT(numbers.rbegin()->first, uint64_t{1} << 53);
}

TEST_F(UrlEnvironmentTest, ABusyServiceIsAskedAgain) {
  std::atomic<int> asked = 0;
  const test::ScriptedServer server(serving([&](const Json& request) {
    const int time = asked++;
    if (time == 0) return reply(429, "wait", "Retry-After: 0\r\n");
    if (time == 1) return reply(503, "wait");
    return reply(200, honest_answer(request));
  }));
  const auto environment = start(server);
  open_episode(*environment, 1);
  EXPECT_TRUE(step_episode(*environment, 1).done);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(close_episode(*environment, 1).reward, 0.5);
}

TEST_F(UrlEnvironmentTest, WhatIsNoAnswerIsAnError) {
  const struct {
    std::string answer;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {reply(500, "out of memory"), ErrorCode::kRemote, "status 500"},
      {reply(502, "no upstream"), ErrorCode::kPeerLost, "status 502"},
      {reply(400, "no such call"), ErrorCode::kInvalidArgument, "no such call"},
      {reply(401, ""), ErrorCode::kUnauthenticated, "status 401"},
      {reply(503, "", "Retry-After: 3600\r\n"), ErrorCode::kPeerLost, "503"},
      {reply(200, "<html>"), ErrorCode::kCorrupt, "is no JSON object that can be read; expected"},
      {reply(200, R"({"step": 4})"), ErrorCode::kCorrupt, "is one to another call"},
      {reply(200, std::string(2 << 20, ' ')), ErrorCode::kCorrupt,
       "an answer of an environment has no more"},
      {"220 mail.example.org ESMTP\r\n\r\n", ErrorCode::kCorrupt, "the answer is no HTTP"},
  };
  for (const auto& c : cases) {
    std::atomic<int> steps = 0;
    const test::ScriptedServer server(serving([&](const Json&) {
      ++steps;
      return c.answer;
    }));
    const auto environment = start(server);
    open_episode(*environment, 1);

    // The error says who answered, and what; not all of a long answer.
    const Error error = error_of([&] { step_episode(*environment, 1); });
    EXPECT_EQ(error.code(), c.code) << c.part << ": " << error.what();
    EXPECT_TRUE(error.message().starts_with("tools/0: " + server.url("/env") + ": "))
        << error.message();
    EXPECT_NE(error.message().find(c.part), std::string::npos) << error.message();
    EXPECT_LT(error.message().size(), 1000u);

    // A step that is made twice is another episode, so that nothing is asked again.
    EXPECT_EQ(steps, 1);
    EXPECT_EQ(error_of([&] { step_episode(*environment, 1); }).message(),
              "tools/0: episode 1 is not open");
  }
}

TEST_F(UrlEnvironmentTest, ItsWordsEndAnEpisode) {
  std::mutex mutex;
  std::vector<std::string> requests;
  std::atomic<bool> refuses = true;
  const test::ScriptedServer server(test::answer_all([&](const Received& received) {
    const std::lock_guard lock(mutex);
    requests.push_back(received.body);
    const Json request = Json::parse(received.body);
    if (!request.contains("step")) return reply(200, honest_answer(request));
    const Json answer{{"step", request["step"]}, {refuses ? "error" : "message", "no such tool"}};
    return reply(200, answer.dump());
  }));
  const auto environment = start(server);
  open_episode(*environment, 1);
  const Error error = error_of([&] { step_episode(*environment, 1); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(error.message().ends_with(": no such tool")) << error.message();

  // A wrong answer does not end it there, so it is closed.
  refuses = false;
  open_episode(*environment, 2);
  EXPECT_EQ(error_of([&] { step_episode(*environment, 2); }).code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(test::wait_until([&] {
    const std::lock_guard lock(mutex);
    return requests.size() == 5;
  }));
  const std::lock_guard lock(mutex);
  EXPECT_TRUE(Json::parse(requests.back()).contains("close")) << requests.back();
}

TEST_F(UrlEnvironmentTest, TheDeadlineHolds) {
  // One that says nothing, and one that says its answer a byte at a time.
  for (const bool slow_body : {false, true}) {
    const test::ScriptedServer server([slow_body](test::Peer& peer) {
      const auto received = peer.read();
      if (!received) return;
      const Json request = Json::parse(received->body);
      if (!request.contains("step")) {
        peer.write(reply(200, honest_answer(request)));
        return;
      }
      const std::string answer = reply(200, std::string(100'000, ' '));
      for (size_t i = 0; slow_body && peer.write(answer.substr(i % answer.size(), 1)); ++i)
        std::this_thread::sleep_for(milliseconds(20));
      peer.wait_closed();
    });
    const auto environment = start(server, seconds(3) * test::kSlowness);
    open_episode(*environment, 1);
    const auto began = Deadline::Clock::now();
    const Error error = error_of([&] { step_episode(*environment, 1); });
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
    EXPECT_LT(Deadline::Clock::now() - began, seconds(60) * test::kSlowness);
  }
}

TEST_F(UrlEnvironmentTest, TrustsWhomItShould) {
  const test::Authority authority;
  const test::ScriptedServer server(
      serving([](const Json& request) { return reply(200, honest_answer(request)); }),
      authority.issue());
  put(folder_ / "ca.pem", authority.pem());
  EnvironmentOptions options = at(server.url("/"));
  EXPECT_TRUE(options.url.starts_with("https://"));
  options.ca_file = folder_ / "ca.pem";
  const auto environment = make_environment("tools/0", options, seconds(60));
  open_episode(*environment, 1);
  EXPECT_EQ(close_episode(*environment, 1).reward, 0.5);

  options.ca_file.clear();
  const auto strange = make_environment("tools/0", options, seconds(60));
  EXPECT_EQ(error_of([&] { strange->info(); }).code(), ErrorCode::kUnauthenticated);
}

TEST_F(UrlEnvironmentTest, WaitsForAServiceThatStarts) {
  std::atomic<int> connections = 0;
  const test::ScriptedServer server([&](test::Peer& peer) {
    if (connections++ < 2) return;  // closes
    const auto received = peer.read();
    if (received) peer.write(reply(200, honest_answer(Json::parse(received->body))));
  });
  EXPECT_TRUE(start(server)->info().user_turns);
  EXPECT_GE(connections, 3);

  std::string url;
  {
    const test::ScriptedServer gone(serving([](const Json&) { return std::string(); }));
    url = gone.url("/");
  }
  EnvironmentOptions options = at(url);
  options.start_timeout = seconds(2);
  const auto environment = make_environment("tools/0", options, seconds(60));
  const Error error = error_of([&] { environment->info(); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
}

TEST_F(UrlEnvironmentTest, StopEndsWhatWaits) {
  const test::ScriptedServer server([](test::Peer& peer) {
    const auto received = peer.read();
    if (!received) return;
    const Json request = Json::parse(received->body);
    if (!request.contains("step")) peer.write(reply(200, honest_answer(request)));
    if (request.contains("step")) peer.wait_closed();
  });
  const auto environment = start(server);
  open_episode(*environment, 1);
  auto step = environment->step(turn_of(1));
  // Closing gives up the step, too.
  auto closed = environment->close({.episode = 1});
  EXPECT_EQ(error_of([&] { step.get(patience()); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(closed.get(patience()).reward, 0.5);

  open_episode(*environment, 2);
  auto other = environment->step(turn_of(2));
  environment->stop();
  EXPECT_EQ(error_of([&] { other.get(patience()); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(error_of([&] { open_episode(*environment, 3); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(error_of([&] { environment->info(); }).code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace retort::environments
