// The seam that the launcher and the roles use, and Gloo's process groups over it.
#include "rpc/rendezvous/rendezvous.h"

#include <gtest/gtest.h>

#include "tests/rpc/rendezvous/spawned_rank.h"
#include "tests/rpc/rendezvous/store_fixture.h"
#include "tests/support/thrown.h"

namespace retort::rpc::rendezvous::testing {
namespace {

RendezvousAccess access_of(std::string name, Encryption encryption = Encryption::kAuto) {
  return {.name = std::move(name),
          .run = "run 7",
          .secret = "the secret of these tests",
          .encryption = encryption};
}

class Rendezvous : public ::testing::TestWithParam<Encryption> {};

TEST_P(Rendezvous, ProcessesFindEachOther) {
  const RendezvousServer server(access_of("", GetParam()));
  EXPECT_EQ(server.host(), "127.0.0.1");
  const ConnectStore teacher = store_connector(access_of("teacher/0", GetParam()));
  const ConnectStore student = store_connector(access_of("student/0", GetParam()));
  teacher(server.host(), server.port(), 60s)->set("address/0", bytes("127.0.0.1:4000"));
  EXPECT_EQ(text(student(server.host(), server.port(), 60s)->get("address/0")), "127.0.0.1:4000");
}

TEST_P(Rendezvous, AGroupOfGloosConnects) {
  const RendezvousServer server(access_of("", GetParam()));
  const bool tls = GetParam() == Encryption::kAlways;
  std::vector<test::ChildProcess> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.push_back(spawn_rank(rank, 3, server.port(), tls));
  for (test::ChildProcess& rank : ranks)
    EXPECT_EQ(rank.wait(Deadline::after(90s)), 0);
}

INSTANTIATE_TEST_SUITE_P(Encryptions, Rendezvous,
                         ::testing::Values(Encryption::kAuto, Encryption::kAlways),
                         [](const auto& value) { return std::string(enum_name(value.param)); });

TEST(RendezvousErrors, AWrongSecret) {
  const RendezvousServer server(access_of(""));
  RendezvousAccess stranger = access_of("student/0");
  stranger.secret = "a guess";
  EXPECT_EQ(test::code_of([&] { store_connector(stranger)("127.0.0.1", server.port(), 300ms); }),
            ErrorCode::kUnauthenticated);
}

// One secret serves two runs, and those who wait to be told which one is theirs.
TEST(RendezvousErrors, AnotherRunOfTheSameSecret) {
  RendezvousAccess kept = access_of("");
  kept.meeting = "joined";
  const RendezvousServer server(kept);
  RendezvousAccess other = access_of("student/0");
  other.run = "run 8";
  EXPECT_EQ(test::code_of([&] { store_connector(other)("127.0.0.1", server.port(), 300ms); }),
            ErrorCode::kUnauthenticated);
  other.run = "joined";
  store_connector(other)("127.0.0.1", server.port(), 60s)->set("member", bytes("student/0"));
  const auto store = store_connector(access_of("student/0"))("127.0.0.1", server.port(), 60s);
  EXPECT_EQ(text(store->get("member")), "student/0");
}

TEST(RendezvousErrors, NobodyThere) {
  const uint16_t port = RendezvousServer(access_of("")).port();
  test::expect_error(ErrorCode::kTimeout, "127.0.0.1:" + std::to_string(port),
                     [&] { store_connector(access_of("student/0"))("127.0.0.1", port, 100ms); });
}

TEST(RendezvousErrors, WhatCannotBe) {
  const RendezvousServer server(access_of(""));
  const auto code = [&](const std::string& bind, const std::string& ports) {
    return test::code_of([&] { RendezvousServer(access_of(""), bind, ports); });
  };
  EXPECT_EQ(code("0.0.0.0", "0"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("auto", "many"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("no-such-host.invalid", "0"), ErrorCode::kUnavailable);
  EXPECT_EQ(code("127.0.0.1", std::to_string(server.port())), ErrorCode::kUnavailable);

  const ConnectStore nameless = store_connector(access_of(""));
  EXPECT_EQ(test::code_of([&] { nameless("127.0.0.1", server.port(), 60s); }),
            ErrorCode::kInvalidArgument);
  const ConnectStore student = store_connector(access_of("student/0"));
  EXPECT_EQ(test::code_of([&] { student("127.0.0.1", server.port(), 0ms); }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort::rpc::rendezvous::testing
