// A role that is an environment: many callers of one, callers that go away, an environment that is
// lost; and a client of several replicas.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "roles/environment/client.h"
#include "roles/environment/episode_places.h"
#include "tests/roles/fake_environment.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

using test::code_of;

Deadline soon() { return Deadline::after(60s); }

OpenEpisode opening(uint64_t episode, const std::string& row = "{}") {
  return {.episode = episode, .seed = 3, .row = row};
}
EpisodeTurn turn_of(uint64_t episode, int64_t turn, const std::string& text) {
  return {.episode = episode, .turn = turn, .text = text};
}

// Callers of one replica, by its methods.
class EnvironmentServerTest : public ::testing::Test {
 protected:
  using AgentPtr = std::unique_ptr<rpc::Agent>;

  AgentPtr connected(const std::string& name) {
    auto agent = std::make_unique<rpc::Agent>(rpc::Agent::Options{.name = name, .secret = "s"});
    agent->connect("tools/0", tools.agent.address(), soon());
    return agent;
  }
  static Future<OpenedEpisode> open(rpc::Agent& from, uint64_t episode,
                                    const std::string& row = "{}") {
    return from.call("tools/0", kEnvironmentOpen, opening(episode, row));
  }
  static Future<EpisodeAnswer> step(rpc::Agent& from, uint64_t episode, int64_t turn,
                                    const std::string& text) {
    return from.call("tools/0", kEnvironmentStep, turn_of(episode, turn, text));
  }
  static Future<ClosedEpisode> close(rpc::Agent& from, uint64_t episode) {
    return from.call("tools/0", kEnvironmentClose, {.episode = episode});
  }
  // Waits until the environment has so many episodes.
  bool has_open(size_t episodes) {
    return test::wait_until(
        [&] {
          return tools.fake->open_episodes().size() == episodes &&
                 tools.server.num_open() == episodes;
        },
        60s, 1ms);
  }

  ServedEnvironment tools{"tools/0"};
  AgentPtr caller = connected("generator/0");
};

TEST_F(EnvironmentServerTest, AnEpisodeFromItsBeginToItsEnd) {
  const EnvironmentInfo info = caller->call("tools/0", kEnvironmentInfo, {}).get(soon());
  EXPECT_EQ(info.name, "tools/0");
  EXPECT_EQ(info.episodes, 4);
  EXPECT_FALSE(info.user_turns);

  EXPECT_EQ(open(*caller, 7).get(soon()).messages, R"(["tools/0 1 3"])");
  EpisodeAnswer answer = step(*caller, 7, 1, "first").get(soon());
  EXPECT_EQ(answer.messages, R"(["tools/0 1 first"])");
  EXPECT_FALSE(answer.done);
  EXPECT_TRUE(step(*caller, 7, 2, "second").get(soon()).done);
  EXPECT_EQ(tools.server.progress().state, ", 1 open");
  EXPECT_EQ(close(*caller, 7).get(soon()).reward, 2.0);

  EXPECT_TRUE(tools.fake->open_episodes().empty());
  EXPECT_EQ(tools.server.progress().count, 1);
  EXPECT_EQ(tools.server.summary(), "1 episodes closed");
}

TEST_F(EnvironmentServerTest, CallersWithEqualNumbersNeverMeet) {
  const AgentPtr other = connected("generator/1");
  open(*caller, 7).get(soon());
  open(*other, 7).get(soon());
  EXPECT_EQ(step(*caller, 7, 1, "mine").get(soon()).messages, R"(["tools/0 1 mine"])");
  EXPECT_EQ(step(*other, 7, 1, "yours").get(soon()).messages, R"(["tools/0 2 yours"])");
  EXPECT_EQ(close(*other, 7).get(soon()).reward, 1.0);
  EXPECT_EQ(step(*caller, 7, 2, "still").get(soon()).messages, R"(["tools/0 1 still"])");
}

TEST_F(EnvironmentServerTest, TakesNoMoreEpisodesThanTheEnvironmentDoes) {
  const AgentPtr other = connected("generator/1");
  for (uint64_t episode = 1; episode <= 3; ++episode)
    open(*caller, episode).get(soon());
  open(*other, 1).get(soon());
  EXPECT_EQ(code_of([&] { open(*other, 2).get(soon()); }), ErrorCode::kResourceExhausted);
  close(*caller, 2).get(soon());
  open(*other, 2).get(soon());
}

TEST_F(EnvironmentServerTest, ANumberThatIsOpenIsRefused) {
  open(*caller, 7).get(soon());
  EXPECT_EQ(code_of([&] { open(*caller, 7).get(soon()); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(step(*caller, 7, 1, "on").get(soon()).messages, R"(["tools/0 1 on"])");
}

TEST_F(EnvironmentServerTest, WhatIsNotOpenIsLost) {
  EXPECT_EQ(code_of([&] { step(*caller, 7, 1, "what").get(soon()); }), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { close(*caller, 7).get(soon()); }), ErrorCode::kUnavailable);
}

TEST_F(EnvironmentServerTest, ARefusedTurnEndsTheEpisodeAlone) {
  open(*caller, 1).get(soon());
  open(*caller, 2).get(soon());
  const Error refused = test::error_of([&] { step(*caller, 1, 1, "refuse").get(soon()); });
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("this is no move"), std::string::npos);
  EXPECT_EQ(code_of([&] { step(*caller, 1, 2, "again").get(soon()); }), ErrorCode::kUnavailable);
  EXPECT_EQ(step(*caller, 2, 1, "on").get(soon()).messages, R"(["tools/0 2 on"])");
  EXPECT_TRUE(has_open(1));
}

TEST_F(EnvironmentServerTest, OneTurnOfAnEpisodeAtATime) {
  open(*caller, 1).get(soon());
  auto slow = step(*caller, 1, 1, "hang");
  ASSERT_TRUE(test::wait_until([&] { return tools.fake->num_held() == 1; }));
  EXPECT_EQ(code_of([&] { step(*caller, 1, 2, "hasty").get(soon()); }),
            ErrorCode::kInvalidArgument);
  tools.fake->release();
  EXPECT_EQ(slow.get(soon()).messages, R"(["tools/0 1 hang"])");
}

TEST_F(EnvironmentServerTest, AnEndDoesNotWaitForTheTurnInWork) {
  open(*caller, 1).get(soon());
  auto slow = step(*caller, 1, 1, "hang");
  ASSERT_TRUE(test::wait_until([&] { return tools.fake->num_held() == 1; }));
  EXPECT_EQ(close(*caller, 1).get(soon()).reward, 0.0);
  EXPECT_TRUE(has_open(0));
  tools.fake->release();
  EXPECT_EQ(code_of([&] { slow.get(soon()); }), ErrorCode::kCancelled);
}

TEST_F(EnvironmentServerTest, EpisodesOfACallerThatIsGoneAreClosed) {
  AgentPtr gone = connected("generator/1");
  open(*caller, 1).get(soon());
  open(*gone, 1).get(soon());
  open(*gone, 2).get(soon());
  gone.reset();
  EXPECT_TRUE(has_open(1));
  EXPECT_EQ(step(*caller, 1, 1, "on").get(soon()).messages, R"(["tools/0 1 on"])");
}

// Its end need not have been noticed: the name is connected all the time.
TEST_F(EnvironmentServerTest, EpisodesOfACallerThatWasReplacedAreClosed) {
  const AgentPtr before = connected("generator/1");
  open(*before, 1).get(soon());
  open(*before, 2).get(soon());
  const AgentPtr after = connected("generator/1");
  EXPECT_EQ(open(*after, 1).get(soon()).messages, R"(["tools/0 3 3"])");
  EXPECT_TRUE(has_open(1));
  EXPECT_EQ(code_of([&] { step(*after, 2, 1, "what").get(soon()); }), ErrorCode::kUnavailable);
}

TEST_F(EnvironmentServerTest, WithItsEnvironmentTheRoleIsLost) {
  open(*caller, 1).get(soon());
  tools.fake->set_error(ErrorCode::kPeerLost);
  EXPECT_EQ(code_of([&] { step(*caller, 1, 1, "on").get(soon()); }), ErrorCode::kUnavailable);
  for (int i = 0; i < EnvironmentServer::kMaxLosses; ++i) {
    EXPECT_FALSE(tools.failure().has_value());
    EXPECT_EQ(code_of([&] { open(*caller, 1).get(soon()); }), ErrorCode::kUnavailable);
  }
  ASSERT_TRUE(test::wait_until([&] { return tools.failure().has_value(); }));
  EXPECT_EQ(tools.failure()->code(), ErrorCode::kUnavailable);
  EXPECT_NE(tools.failure()->message().find("the environment is lost: the fake"),
            std::string::npos);
}

// Without RPC: what comes when is the test's.
class EnvironmentCallsTest : public ::testing::Test {
 protected:
  rpc::CallContext call(const std::string& process = "first") const {
    return {.peer = "generator/0", .call_id = 1, .cancelled = cancelled, .process = process};
  }

  const std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<FakeEnvironment> fake = std::make_shared<FakeEnvironment>("tools/0");
  EnvironmentServer server{"tools/0", fake};
};

TEST_F(EnvironmentCallsTest, ATurnThatItsCallerGaveUpEndsTheEpisode) {
  server.open(opening(1), call()).get(soon());
  auto slow = server.step(turn_of(1, 1, "hang"), call());
  *cancelled = true;
  fake->release();
  slow.get(soon());
  EXPECT_TRUE(fake->open_episodes().empty());
  EXPECT_EQ(server.num_open(), 0u);
  *cancelled = false;
  EXPECT_EQ(code_of([&] { server.step(turn_of(1, 2, "on"), call()); }), ErrorCode::kUnavailable);
}

TEST_F(EnvironmentCallsTest, ATurnInWorkOfACallerThatWasReplacedIsGivenUp) {
  server.open(opening(1), call()).get(soon());
  auto slow = server.step(turn_of(1, 1, "hang"), call());
  server.open(opening(1), call("second")).get(soon());
  EXPECT_EQ(fake->open_episodes(), std::vector<uint64_t>{2});
  fake->release();
  EXPECT_EQ(code_of([&] { slow.get(soon()); }), ErrorCode::kCancelled);
  EXPECT_EQ(server.step(turn_of(1, 1, "on"), call("second")).get(soon()).messages,
            R"(["tools/0 2 on"])");
}

TEST_F(EnvironmentCallsTest, AnEndWaitsForTheOpening) {
  auto opened = server.open(opening(1, "hang"), call());
  auto end = server.close({.episode = 1}, call());
  EXPECT_FALSE(end.ready());
  fake->release();
  opened.get(soon());
  EXPECT_EQ(end.get(soon()).reward, 0.0);
  EXPECT_EQ(server.num_open(), 0u);
  EXPECT_EQ(server.episodes_closed(), 1);
}

TEST_F(EnvironmentCallsTest, AnOpeningThatFailsIsTheEnd) {
  auto opened = server.open(opening(1, "hang"), call());
  auto end = server.close({.episode = 1}, call());
  fake->set_error(ErrorCode::kTimeout);
  fake->release();
  EXPECT_EQ(code_of([&] { opened.get(soon()); }), ErrorCode::kTimeout);
  EXPECT_EQ(code_of([&] { end.get(soon()); }), ErrorCode::kTimeout);
  EXPECT_EQ(server.num_open(), 0u);
}

// One loss of the environment takes all along that it has, or is to open.
TEST_F(EnvironmentCallsTest, LossesThatComeTogetherAreOne) {
  std::vector<Future<OpenedEpisode>> together;
  for (uint64_t episode = 1; episode <= 4; ++episode)
    together.push_back(server.open(opening(episode, "hang"), call()));
  fake->set_error(ErrorCode::kPeerLost);
  fake->release();
  for (Future<OpenedEpisode>& one : together)
    EXPECT_EQ(code_of([&] { one.get(soon()); }), ErrorCode::kUnavailable);
  EXPECT_FALSE(server.work());

  // Each of these is a loss of its own.
  EXPECT_EQ(code_of([&] { server.open(opening(1), call()).get(soon()); }), ErrorCode::kUnavailable);
  EXPECT_FALSE(server.work());
  EXPECT_EQ(code_of([&] { server.open(opening(1), call()).get(soon()); }), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { server.work(); }), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { server.open(opening(1), call()); }), ErrorCode::kPeerLost);
}

// What fails with one call does not end the role, however often.
TEST_F(EnvironmentCallsTest, ACallThatFailsIsNoLoss) {
  fake->set_error(ErrorCode::kRemote);
  for (int i = 0; i <= EnvironmentServer::kMaxLosses; ++i)
    EXPECT_EQ(code_of([&] { server.open(opening(1), call()).get(soon()); }), ErrorCode::kRemote);
  EXPECT_FALSE(server.work());
}

// A client of two replicas that take two episodes each.
class RemoteEnvironmentTest : public ::testing::Test {
 protected:
  RemoteEnvironmentTest() {
    for (size_t i = 0; i < replicas.size(); ++i)
      agent.connect("tools/" + std::to_string(i), replicas[i]->agent.address(), soon());
  }
  static RemoteEnvironment::Options options(std::chrono::milliseconds patience) {
    return {
        .role = "tools", .replicas = {"tools/0", "tools/1"}, .timeout = 60s, .patience = patience};
  }
  std::unique_ptr<RemoteEnvironment> attached(std::chrono::milliseconds patience = 60s) {
    auto remote = std::make_unique<RemoteEnvironment>(options(patience));
    remote->attach(agent, /*links=*/nullptr);
    remote->info();
    return remote;
  }
  FakeEnvironment& fake(size_t replica) { return *replicas.at(replica)->fake; }

  const std::vector<std::unique_ptr<ServedEnvironment>> replicas = [] {
    std::vector<std::unique_ptr<ServedEnvironment>> all;
    for (const char* name : {"tools/0", "tools/1"})
      all.push_back(std::make_unique<ServedEnvironment>(name, 2));
    return all;
  }();
  rpc::Agent agent{rpc::Agent::Options{.name = "generator/0", .secret = "s"}};
};

TEST_F(RemoteEnvironmentTest, SharesEpisodesOutAndKeepsEachWhereItIs) {
  const auto remote = attached();
  EXPECT_EQ(remote->info().name, "tools");
  EXPECT_EQ(remote->info().episodes, 4);
  EXPECT_EQ(remote->open(opening(1)).get(soon()).messages, R"(["tools/0 1 3"])");
  EXPECT_EQ(remote->open(opening(2)).get(soon()).messages, R"(["tools/1 1 3"])");
  EXPECT_EQ(remote->step(turn_of(1, 1, "a")).get(soon()).messages, R"(["tools/0 1 a"])");
  EXPECT_EQ(remote->step(turn_of(2, 1, "b")).get(soon()).messages, R"(["tools/1 1 b"])");
  EXPECT_EQ(remote->close({.episode = 1}).get(soon()).reward, 1.0);
  EXPECT_EQ(remote->open(opening(3)).get(soon()).messages, R"(["tools/0 2 3"])");
  EXPECT_EQ(code_of([&] { remote->open(opening(3)).get(soon()); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { remote->step(turn_of(9, 1, "c")).get(soon()); }),
            ErrorCode::kInvalidArgument);
}

// Its program may have to start again, which takes longer than an answer.
TEST_F(RemoteEnvironmentTest, AnOpenHasATimeoutOfItsOwn) {
  RemoteEnvironment::Options both = options(60s);
  both.timeout = 500ms;
  both.open_timeout = 60s;
  RemoteEnvironment remote(both);
  remote.attach(agent, /*links=*/nullptr);
  remote.info();
  auto opened = remote.open({.episode = 1, .seed = 3, .row = "hang"});
  EXPECT_FALSE(opened.wait(Deadline::after(800ms)));
  fake(0).release();
  EXPECT_EQ(opened.get(soon()).messages, R"(["tools/0 1 3"])");
  auto answer = remote.step(turn_of(1, 1, "hang"));
  EXPECT_EQ(code_of([&] { answer.get(soon()); }), ErrorCode::kTimeout);
}

TEST_F(RemoteEnvironmentTest, AnEpisodeWaitsForRoom) {
  const auto remote = attached();
  for (uint64_t episode = 1; episode <= 4; ++episode)
    remote->open(opening(episode)).get(soon());
  auto fifth = remote->open(opening(5));
  EXPECT_FALSE(fifth.wait(Deadline::after(50ms)));
  remote->close({.episode = 2}).get(soon());
  EXPECT_EQ(fifth.get(soon()).messages, R"(["tools/1 3 3"])");
}

// Others have all the room, and nobody tells when they give it back.
TEST_F(RemoteEnvironmentTest, AnEpisodeWaitsForRoomThatOthersHave) {
  const auto remote = attached();
  rpc::Agent other(rpc::Agent::Options{.name = "generator/1", .secret = "s"});
  for (size_t i = 0; i < replicas.size(); ++i) {
    const std::string peer = "tools/" + std::to_string(i);
    other.connect(peer, replicas[i]->agent.address(), soon());
    for (uint64_t episode = 1; episode <= 2; ++episode)
      other.call(peer, kEnvironmentOpen, opening(episode)).get(soon());
  }
  auto mine = remote->open(opening(1));
  EXPECT_FALSE(mine.wait(Deadline::after(300ms)));
  other.call("tools/1", kEnvironmentClose, {.episode = 1}).get(soon());
  EXPECT_EQ(mine.get(soon()).messages, R"(["tools/1 3 3"])");
}

TEST_F(RemoteEnvironmentTest, AnEpisodeWithoutRoomIsRefusedInTheEnd) {
  const auto remote = attached(100ms);
  for (uint64_t episode = 1; episode <= 4; ++episode)
    remote->open(opening(episode)).get(soon());
  test::expect_error(ErrorCode::kResourceExhausted, "raise `episodes`",
                     [&] { remote->open(opening(5)).get(soon()); });
}

TEST_F(RemoteEnvironmentTest, ATurnThatIsGivenUpEndsTheEpisodeThere) {
  const auto remote = attached();
  remote->open(opening(1)).get(soon());
  auto slow = remote->step(turn_of(1, 1, "hang"));
  ASSERT_TRUE(test::wait_until([&] { return fake(0).num_held() == 1; }));
  slow.cancel();
  EXPECT_EQ(code_of([&] { slow.get(soon()); }), ErrorCode::kCancelled);
  EXPECT_EQ(code_of([&] { remote->step(turn_of(1, 2, "on")).get(soon()); }),
            ErrorCode::kInvalidArgument);
  fake(0).release();
  EXPECT_TRUE(test::wait_until([&] { return fake(0).open_episodes().empty(); }));
}

TEST_F(RemoteEnvironmentTest, AnEpisodeThatIsGivenUpBeforeItBeganIsClosed) {
  const auto remote = attached();
  auto slow = remote->open(opening(1, "hang"));
  ASSERT_TRUE(test::wait_until([&] { return fake(0).num_held() == 1; }));
  slow.cancel();
  EXPECT_EQ(code_of([&] { slow.get(soon()); }), ErrorCode::kCancelled);
  fake(0).release();
  EXPECT_TRUE(test::wait_until([&] { return replicas[0]->server.num_open() == 0; }));
  EXPECT_TRUE(fake(0).open_episodes().empty());
}

// It is then one that waits for room, and nobody's call.
TEST_F(RemoteEnvironmentTest, AnEpisodeThatALostReplicaDidNotTakeCanBeGivenUp) {
  const auto remote = attached();
  for (uint64_t episode = 1; episode <= 3; ++episode)
    remote->open(opening(episode)).get(soon());
  replicas[1]->agent.close();
  ASSERT_TRUE(test::wait_until([&] { return agent.peers().size() == 1; }));
  auto waits = remote->open(opening(4));
  EXPECT_FALSE(waits.wait(Deadline::after(50ms)));
  waits.cancel();
  EXPECT_EQ(code_of([&] { waits.get(soon()); }), ErrorCode::kCancelled);
}

TEST_F(RemoteEnvironmentTest, ALostEpisodeIsNotThoseBesideIt) {
  const auto remote = attached();
  for (uint64_t episode = 1; episode <= 3; ++episode)
    remote->open(opening(episode)).get(soon());
  fake(0).set_error(ErrorCode::kPeerLost);
  EXPECT_EQ(code_of([&] { remote->step(turn_of(1, 1, "on")).get(soon()); }), ErrorCode::kPeerLost);
  EXPECT_EQ(remote->open(opening(1)).get(soon()).messages, R"(["tools/1 2 3"])")
      << "where nothing opens another replica does";
  fake(0).set_error({});
  EXPECT_EQ(remote->step(turn_of(3, 1, "on")).get(soon()).messages, R"(["tools/0 2 on"])");
  EXPECT_EQ(remote->step(turn_of(2, 1, "on")).get(soon()).messages, R"(["tools/1 1 on"])");
}

TEST_F(RemoteEnvironmentTest, WithoutAReplicaNothingBegins) {
  const auto remote = attached();
  for (const auto& replica : replicas)
    replica->fake->set_error(ErrorCode::kPeerLost);
  test::expect_error(ErrorCode::kPeerLost, "every replica of role 'tools' is lost",
                     [&] { remote->open(opening(1)).get(soon()); });
  EXPECT_TRUE(replicas[0]->failure() && replicas[1]->failure());
}

TEST_F(RemoteEnvironmentTest, ARewardThatIsNoNumberIsRefused) {
  const auto remote = attached();
  remote->open(opening(1)).get(soon());
  remote->step(turn_of(1, 1, "mad")).get(soon());
  test::expect_error(ErrorCode::kCorrupt, "the reward is not finite",
                     [&] { remote->close({.episode = 1}).get(soon()); });
}

TEST_F(RemoteEnvironmentTest, StopEndsAllThatWaits) {
  const auto remote = attached();
  for (uint64_t episode = 1; episode <= 4; ++episode)
    remote->open(opening(episode)).get(soon());
  auto turn = remote->step(turn_of(1, 1, "hang"));
  auto waits = remote->open(opening(5));
  remote->stop();
  EXPECT_EQ(code_of([&] { turn.get(soon()); }), ErrorCode::kCancelled);
  EXPECT_EQ(code_of([&] { waits.get(soon()); }), ErrorCode::kCancelled);
  EXPECT_EQ(code_of([&] { remote->open(opening(6)).get(soon()); }), ErrorCode::kCancelled);
  EXPECT_EQ(code_of([&] { remote->step(turn_of(2, 1, "on")).get(soon()); }), ErrorCode::kCancelled);
}

TEST(RemoteEnvironmentInfo, ReplicasMustBeAlike) {
  ServedEnvironment one("tools/0", 2, /*user_turns=*/false), other("tools/1", 2, true);
  rpc::Agent agent(rpc::Agent::Options{.name = "generator/0", .secret = "s"});
  agent.connect("tools/0", one.agent.address(), soon());
  agent.connect("tools/1", other.agent.address(), soon());
  RemoteEnvironment remote(
      {.role = "tools", .replicas = {"tools/0", "tools/1"}, .timeout = 60s, .patience = 1s});
  remote.attach(agent, /*links=*/nullptr);
  test::expect_error(ErrorCode::kMismatch, "are different environments", [&] { remote.info(); });
  remote.stop();
}

TEST(EpisodePlaces, AnEndIsToldOnce) {
  EpisodePlaces places({"tools/0"});
  places.set_room(0, 2);
  const auto first = places.begin(1), second = places.begin(2);
  ASSERT_TRUE(first && second);
  places.end(1, *first);
  places.end(1, *first);
  EXPECT_TRUE(places.begin(3));
  EXPECT_FALSE(places.begin(4)) << "the second one is still there";
}

TEST(EpisodePlaces, ALossIsToldOnce) {
  EpisodePlaces places({"tools/0"});
  places.set_room(0, 2);
  const auto first = places.begin(1), second = places.begin(2);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(places.begin(3)) << "there is no room";
  places.lose(*first);
  EXPECT_TRUE(places.all_lost());
  EXPECT_FALSE(places.begin(3));

  // What failed late does not take down the one that is back, nor count against it.
  places.set_room(0, 1);
  places.lose(*second);
  EXPECT_FALSE(places.all_lost());
  places.end(1, *first);
  EXPECT_EQ(code_of([&] { places.at(2); }), ErrorCode::kPeerLost);
  EXPECT_EQ(code_of([&] { places.at(2); }), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(places.begin(3));
  EXPECT_FALSE(places.begin(4));
}

}  // namespace
}  // namespace retort::roles
