// Peers that are lost and come back: the same process, a new one, and one that was replaced.
#include "rpc/peer_links.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "tests/rpc/echo.h"

namespace retort::rpc::testing {
namespace {

// A server that can be replaced by another of its name, and a client that finds whichever
// published its address last.
class Links : public ::testing::Test {
 protected:
  struct Server {
    explicit Server(uint64_t restart, const std::string& port = "0")
        : agent(options(restart, port)) {
      serve_echo(agent, handlers.queue);
    }
    static Agent::Options options(uint64_t restart, const std::string& port) {
      Agent::Options options = agent_options("teacher/0");
      options.restart = restart;
      options.rpc.port = port;
      return options;
    }
    HandlerThread handlers;
    Agent agent;
  };

  Links() : client_(agent_options("student/0")) {
    links_ = std::make_unique<PeerLinks>(
        client_, PeerLinks::Options{.find = [this](const std::string& peer, Deadline) {
          std::lock_guard lock(mutex_);
          ++looked_up_;
          if (peer != "teacher/0" || address_.empty())
            throw Error(ErrorCode::kUnavailable, "nobody knows " + peer);
          return address_;
        }});
  }
  ~Links() override { links_.reset(); }

  std::unique_ptr<Server> start(uint64_t restart) {
    auto server = std::make_unique<Server>(restart);
    publish(server->agent.address());
    return server;
  }
  void publish(const std::string& address) {
    std::lock_guard lock(mutex_);
    address_ = address;
  }
  std::string echo(const std::string& text) {
    return client_.call("teacher/0", kEcho, {.text = text}).get(soon()).text;
  }

  std::mutex mutex_;
  std::string address_;
  std::atomic<size_t> looked_up_{0};
  Agent client_;
  std::unique_ptr<PeerLinks> links_;
};

TEST_F(Links, KeepFindsAndConnects) {
  EXPECT_EQ(code_of([&] { links_->keep("teacher/0", soon()); }), ErrorCode::kUnavailable);
  EXPECT_FALSE(links_->up("teacher/0"));
  const auto server = start(0);
  links_->keep("teacher/0", soon());
  EXPECT_TRUE(links_->up("teacher/0"));
  EXPECT_EQ(echo("hello"), "hello");
}

// With a range of ports a process that is started again may get the one that another had.
TEST_F(Links, KeepPassesOverWhoeverHasThePeersOldPort) {
  Agent other(agent_options("teacher/1"));
  publish(other.address());
  // The last attempt may be cut short by the deadline.
  const ErrorCode code = code_of([&] { links_->keep("teacher/0", Deadline::after(2s)); });
  EXPECT_TRUE(code == ErrorCode::kUnauthenticated ||
              (code == ErrorCode::kTimeout && looked_up_ > 1));
  EXPECT_FALSE(links_->up("teacher/0"));

  const size_t before = looked_up_;
  std::thread keeps([&] { links_->keep("teacher/0", soon()); });
  EXPECT_TRUE(eventually([&] { return looked_up_ > before + 1; }));
  const auto server = start(1);
  keeps.join();
  EXPECT_EQ(echo("hello"), "hello");
}

// The store went with the launcher, or is a new one that knows nobody yet.
TEST_F(Links, WhereNobodyKnowsItAPeerIsLookedForWhereItWas) {
  auto server = start(0);
  const std::string address = server->agent.address();
  links_->keep("teacher/0", soon());
  publish("");
  server.reset();
  ASSERT_TRUE(eventually([&] { return !links_->up("teacher/0"); }));

  server = std::make_unique<Server>(0, address.substr(address.rfind(':') + 1));
  ASSERT_TRUE(links_->wait_up({"teacher/0"}, soon()));
  EXPECT_EQ(echo("again"), "again");
}

TEST_F(Links, ANewProcessIsFoundWhereItIsNow) {
  auto server = start(0);
  links_->keep("teacher/0", soon());
  std::atomic<int> back{0};
  const auto end = links_->on_back([&](const std::string& peer) {
    EXPECT_EQ(peer, "teacher/0");
    ++back;
  });

  server.reset();
  ASSERT_TRUE(eventually([&] { return !links_->up("teacher/0"); }));
  auto lost = client_.call("teacher/0", kEcho, {.text = "away"});
  EXPECT_EQ(code_of(lost), ErrorCode::kPeerLost);
  EXPECT_FALSE(links_->wait_up({"teacher/0"}, Deadline::after(20ms)));

  server = start(1);
  ASSERT_TRUE(links_->wait_up({"teacher/0"}, soon()));
  EXPECT_EQ(echo("again"), "again");
  EXPECT_TRUE(eventually([&] { return back == 1; }));

  // Nobody is called after it said so.
  end();
  server.reset();
  ASSERT_TRUE(eventually([&] { return !links_->up("teacher/0"); }));
  server = start(2);
  ASSERT_TRUE(links_->wait_up({"teacher/0"}, soon()));
  EXPECT_EQ(back, 1);
}

TEST_F(Links, AChangeWakesWhoWaitsForOne) {
  auto server = start(0);
  links_->keep("teacher/0", soon());
  const uint64_t seen = links_->changes();
  std::thread loses([&] { server.reset(); });
  links_->wait_change(seen, soon());
  loses.join();
  EXPECT_NE(links_->changes(), seen);
}

// It was held by a stop signal, say, while another was started in its place.
TEST_F(Links, AProcessThatWasReplacedIsTurnedAway) {
  auto old = start(0);
  const std::string old_address = old->agent.address();
  const auto next = start(1);
  links_->keep("teacher/0", soon());
  EXPECT_EQ(echo("to the new one"), "to the new one");

  EXPECT_EQ(code_of([&] { client_.connect("teacher/0", old_address, soon()); }),
            ErrorCode::kMismatch);
  EXPECT_EQ(code_of([&] { old->agent.connect("student/0", client_.address(), soon()); }),
            ErrorCode::kMismatch);
  EXPECT_TRUE(links_->up("teacher/0"));
  EXPECT_EQ(echo("still there"), "still there");
}

TEST_F(Links, EndWhileAPeerIsAway) {
  auto server = start(0);
  links_->keep("teacher/0", soon());
  server.reset();
  ASSERT_TRUE(eventually([&] { return !links_->up("teacher/0"); }));

  // At a port where connections are taken and nothing is said: an attempt has ten seconds.
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::address_v4::loopback(), 0});
  publish("127.0.0.1:" + std::to_string(silent.local_endpoint().port()));
  const size_t before = looked_up_;
  ASSERT_TRUE(eventually([&] { return looked_up_ > before; }));
  const auto begin = std::chrono::steady_clock::now();
  links_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

// A role of several ranks, which are kept all at once.
class ManyLinks : public ::testing::Test {
 protected:
  static constexpr int kServers = 40;  // more than are connected to at a time

  ManyLinks() {
    for (int i = 0; i < kServers; ++i) {
      const std::string name = "teacher/" + std::to_string(i);
      servers_.push_back(std::make_unique<Agent>(agent_options(name)));
      places_.push_back({.peer = name, .address = servers_.back()->address()});
    }
  }
  PeerLinks::Options finding() {
    return {.find = [this](const std::string& peer, Deadline) {
      ++looked_up_;
      return servers_.at(std::stoul(peer.substr(peer.find('/') + 1)))->address();
    }};
  }

  std::vector<std::unique_ptr<Agent>> servers_;
  std::vector<PeerLinks::Place> places_;
  std::atomic<int> looked_up_{0};
  Agent client_{agent_options("student/0")};
};

// Nothing is heard of the others until it is back: nobody may wait for them.
TEST_F(ManyLinks, OneThatIsBackDoesNotWaitForThoseThatStayAway) {
  constexpr size_t kAway = 9;
  places_.resize(kAway + 1);
  std::atomic<bool> first_is_back{false};
  std::mutex servers_mutex;  // of the first one, which `find` looks at meanwhile
  PeerLinks::Options options;
  options.find = [&](const std::string& peer, Deadline) {
    if (peer == "teacher/0") {
      std::lock_guard lock(servers_mutex);
      if (servers_[0]) return servers_[0]->address();
    } else {
      while (!first_is_back)
        std::this_thread::sleep_for(1ms);
    }
    throw Error(ErrorCode::kTimeout, "nobody knows " + peer);
  };
  PeerLinks links(client_, std::move(options));
  links.keep_all(places_, soon());
  for (size_t i = kAway + 1; i-- > 0;) {
    std::unique_lock lock(servers_mutex);
    const std::unique_ptr<Agent> ended = std::move(servers_[i]);
    lock.unlock();
  }
  for (const PeerLinks::Place& place : places_)
    EXPECT_TRUE(eventually([&] { return !links.up(place.peer); }));

  auto first = std::make_unique<Agent>(agent_options("teacher/0"));
  {
    std::lock_guard lock(servers_mutex);
    servers_[0] = std::move(first);
  }
  EXPECT_TRUE(links.wait_up({"teacher/0"}, soon()));
  first_is_back = true;
}

TEST_F(ManyLinks, AllAreUpAndNoneIsLookedUp) {
  PeerLinks links(client_, finding());
  links.keep_all(places_, soon());
  for (const PeerLinks::Place& place : places_)
    EXPECT_TRUE(links.up(place.peer)) << place.peer;
  EXPECT_EQ(looked_up_, 0);
}

// It was started again after the addresses were read.
TEST_F(ManyLinks, OneThatHasMovedIsFound) {
  servers_[3].reset();
  servers_[3] = std::make_unique<Agent>(agent_options("teacher/3"));
  PeerLinks::Options options = finding();
  options.attempt = std::chrono::milliseconds(500);  // at the port where nobody is
  PeerLinks links(client_, options);
  links.keep_all(places_, soon());
  EXPECT_TRUE(links.up("teacher/3"));
  EXPECT_GE(looked_up_, 1);
}

TEST_F(ManyLinks, TheFirstErrorEndsIt) {
  PeerLinks links(client_, {.find = [](const std::string& peer, Deadline) -> std::string {
                    throw Error(ErrorCode::kUnavailable, "nobody knows " + peer);
                  }});
  places_[5].address = servers_[6]->address();
  EXPECT_EQ(code_of([&] { links.keep_all(places_, soon()); }), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace retort::rpc::testing
