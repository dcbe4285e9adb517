// Environments in processes of their own, one of which is killed in the middle of an episode.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/end_process.h"
#include "roles/environment/client.h"
#include "rpc/peer_links.h"
#include "tests/roles/fake_environment.h"
#include "tests/support/process.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::roles {
namespace {

using test::ChildProcess;
using test::code_of;

constexpr auto kLimit = 60s;

Deadline soon() { return Deadline::after(kLimit); }

// The process of a replica: its name, and how often it was started again.
int serve(const std::vector<std::string>& args) {
  EnvironmentServer server(args.at(0), std::make_shared<FakeEnvironment>(args.at(0)));
  auto queue = std::make_shared<rpc::HandlerQueue>(256);
  rpc::Agent agent(
      rpc::Agent::Options{.name = args.at(0), .secret = "s", .restart = std::stoull(args.at(1))});
  server.serve(agent, queue);
  test::say(agent.address());

  std::atomic<bool> stop{false};
  std::thread stopper([&] {
    test::hear();
    stop = true;
  });
  server.lead(*queue, [&] { return stop.load(); });
  stopper.join();
  queue->close();
  return 0;
}

class Replicas : public ::testing::Test {
 protected:
  void start(const std::string& name) {
    auto child = std::make_unique<ChildProcess>(ChildProcess::spawn(
        {.role = "environment", .args = {name, std::to_string(restarts_[name]++)}, .env = {}}));
    const std::lock_guard lock(mutex_);
    addresses_[name] = child->read_line(soon());
    children_[name] = std::move(child);
  }
  // A client of these replicas, which are started.
  void begin(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      start(name);
      links_.keep(name, soon());
    }
    remote_ = std::make_unique<RemoteEnvironment>(RemoteEnvironment::Options{
        .role = "tools", .replicas = names, .timeout = kLimit, .patience = kLimit});
    remote_->attach(agent_, &links_);
    remote_->info();
  }
  // Says which replica has it: "tools/1".
  std::string open(uint64_t episode) {
    const std::string said =
        remote_->open({.episode = episode, .seed = 3, .row = "{}"}).get(soon()).messages;
    return said.substr(2, said.find(' ') - 2);
  }
  Future<EpisodeAnswer> step(uint64_t episode, const std::string& text) {
    return remote_->step({.episode = episode, .turn = 1, .text = text});
  }

  std::mutex mutex_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, int> restarts_;
  std::map<std::string, std::unique_ptr<ChildProcess>> children_;
  rpc::Agent agent_{rpc::Agent::Options{.name = "generator/0", .secret = "s"}};
  rpc::PeerLinks links_{agent_, {.find = [this](const std::string& peer, Deadline) {
                          const std::lock_guard lock(mutex_);
                          return addresses_.at(peer);
                        }}};
  std::unique_ptr<RemoteEnvironment> remote_;
};

TEST_F(Replicas, OneThatIsKilledInMidEpisode) {
  begin({"tools/0", "tools/1"});
  ASSERT_EQ(open(1), "tools/0");
  ASSERT_EQ(open(2), "tools/1");
  ASSERT_EQ(open(3), "tools/0");
  auto waits = step(1, "hang");
  children_.at("tools/0")->kill();
  EXPECT_EQ(code_of([&] { waits.get(soon()); }), ErrorCode::kPeerLost);
  EXPECT_EQ(code_of([&] { step(3, "on").get(soon()); }), ErrorCode::kPeerLost);
  EXPECT_EQ(step(2, "on").get(soon()).messages, R"(["tools/1 1 on"])");
  EXPECT_EQ(open(4), "tools/1") << "new ones go to those that live";

  // Its successor takes episodes as soon as it answers.
  start("tools/0");
  uint64_t episode = 10;
  EXPECT_TRUE(test::wait_until([&] {
    const std::string where = open(++episode);
    remote_->close({.episode = episode}).get(soon());
    return where == "tools/0";
  }));
  EXPECT_EQ(step(2, "still").get(soon()).messages, R"(["tools/1 1 still"])");
}

TEST_F(Replicas, AnEpisodeWaitsForOneThatComesBack) {
  begin({"tools/0"});
  ASSERT_EQ(open(1), "tools/0");
  children_.at("tools/0")->kill();
  auto opened = remote_->open({.episode = 2, .seed = 3, .row = "{}"});
  EXPECT_FALSE(opened.wait(Deadline::after(200ms)));
  start("tools/0");
  EXPECT_EQ(opened.get(soon()).messages, R"(["tools/0 1 3"])");
  EXPECT_EQ(code_of([&] { step(1, "on").get(soon()); }), ErrorCode::kPeerLost);
  EXPECT_EQ(step(2, "on").get(soon()).messages, R"(["tools/0 1 on"])");
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  using namespace retort;
  if (test::spawned_role()) end_process(roles::serve(test::spawned_args()));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
