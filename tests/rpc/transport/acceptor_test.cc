// Where an acceptor listens, and what it does when there is no room.
#include "rpc/transport/acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/sizes.h"
#include "rpc/listen_address.h"
#include "rpc/network/peer_address.h"
#include "rpc/transport/dial.h"
#include "tests/rpc/transport/echo_pipe.h"
#include "tests/rpc/transport/node.h"
#include "tests/rpc/transport/raw_stream.h"
#include "tests/rpc/transport/spawned_node.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::transport::testing {
namespace {

NodeOptions at(std::vector<std::string> hosts, PortRange ports = {}) {
  auto options = node_options("teacher/0");
  options.acceptor.hosts = std::move(hosts);
  options.acceptor.ports = ports;
  return options;
}

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

Error listening_error(NodeOptions options) {
  return test::error_of([&] { Node node(std::move(options)); });
}

ErrorCode code_of(NodeOptions options) { return listening_error(std::move(options)).code(); }

TEST(Listening, Ipv6) {
  Node server(at({"::1"})), client(node_options("student/0"));
  EXPECT_TRUE(server.address().starts_with("[::1]:")) << server.address();
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
}

TEST(Listening, SeveralAddressesShareOnePort) {
  Node server(at({"127.0.0.1", "::1", "127.0.0.2"})), client(node_options("student/0"));
  const auto addresses = server.acceptor->addresses();
  ASSERT_EQ(addresses.size(), 3u);
  for (const auto& address : addresses) {
    EXPECT_EQ(port_of(address), port_of(addresses.front()));
    EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", address)))) << address;
  }
}

TEST(Listening, Names) {
  Node server(at({"localhost"})), client(node_options("student/0"));
  const auto port = std::to_string(port_of(server.address()));
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", "localhost:" + port))));
  EXPECT_EQ(code_of(at({"no-such-host.invalid"})), ErrorCode::kUnavailable);
}

TEST(Listening, ARangeTakesTheFirstFreePort) {
  Node first(at({"127.0.0.1"}));
  const uint16_t port = port_of(first.address());
  if (port > 65'000) GTEST_SKIP() << "the system gave the last ports of all";
  Node second(at({"127.0.0.1"}, {port, static_cast<uint16_t>(port + 50)}));
  EXPECT_GT(port_of(second.address()), port);
  EXPECT_LE(port_of(second.address()), port + 50);
  EXPECT_EQ(code_of(at({"127.0.0.1"}, {port, 0})), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(at({"127.0.0.1"}, {port, 5})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(at({})), ErrorCode::kInvalidArgument);
}

// Whether the system lets a socket have an address of no interface, as hosts that take over the
// addresses of others have it.
bool binds_any_address() {
  std::ifstream file("/proc/sys/net/ipv4/ip_nonlocal_bind");
  int on = 0;
  return file >> on && on != 0;
}

// From what the error carries: its words are the system's, in the language of the user.
TEST(Listening, ATakenPortIsToldFromAnAddressThatIsNotHere) {
  Node first(at({"127.0.0.1"}));
  const uint16_t port = port_of(first.address());
  const Error taken = listening_error(at({"127.0.0.1"}, {port, port}));
  EXPECT_TRUE(is_port_taken(taken)) << taken.what();

  if (binds_any_address()) GTEST_SKIP() << "net.ipv4.ip_nonlocal_bind is on";
  // 192.0.2.0/24 is for examples, and no host has one of them (RFC 5737).
  const Error elsewhere = listening_error(at({"192.0.2.1"}, {port, port}));
  EXPECT_EQ(elsewhere.code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(is_port_taken(elsewhere)) << elsewhere.what();
}

// The sockets of this process at that port of its own: those that listen, or the others.
std::vector<int> sockets_at(uint16_t port, bool listening) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family != AF_INET || ntohs(address.sin_port) != port) continue;
    int listens = 0;
    socklen_t listens_size = sizeof listens;
    ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size);
    if ((listens != 0) == listening) found.push_back(fd);
  }
  return found;
}

TEST(Listening, ProgramsThatAreStartedInheritNoSocket) {
  Node server(at({"127.0.0.1"})), client(node_options("student/0"));
  // The pipe is kept: its data connection ends with it, and both sides close their sockets then.
  const auto pipe = client.pipe(client.connect("teacher/0", server.address()));
  ASSERT_TRUE(answers(pipe));
  const uint16_t port = port_of(server.address());
  const auto listening = sockets_at(port, true), accepted = sockets_at(port, false);
  EXPECT_EQ(listening.size(), 1u);
  EXPECT_GE(accepted.size(), 2u) << "control and data";
  for (const auto& fds : {listening, accepted})
    for (const int fd : fds)
      EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << fd;
}

TEST(Listening, AnErrorThatStaysIsNoBusyLoop) {
  Node server(at({"127.0.0.1"}));
  // Nothing can be accepted any more, and the socket is ready all the time.
  for (const int fd : sockets_at(port_of(server.address()), true))
    ::shutdown(fd, SHUT_RDWR);
  const AcceptorCounters& counters = server.acceptor->counters();
  ASSERT_TRUE(test::wait_until([&] { return counters.accept_errors >= 5; }));
  const uint64_t before = counters.accept_errors;
  const auto start = Deadline::Clock::now();
  ASSERT_TRUE(test::wait_until([&] { return counters.accept_errors >= before + 10; }));
  EXPECT_GE(Deadline::Clock::now() - start, 50ms) << "a pause between two tries";
}

TEST(Listening, SocketsNoticeADeadPeer) {
  Node server(at({"127.0.0.1"})), client(node_options("student/0"));
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io, boost::asio::ip::tcp::v4());
  apply({.keepalive_idle = std::chrono::seconds(7), .user_timeout = 9000ms}, socket);
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    EXPECT_EQ(getsockopt(socket.native_handle(), level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 7);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 9000);
  EXPECT_NE(option(IPPROTO_TCP, TCP_NODELAY), 0);
}

TEST(Listening, TheSystemGivesNoPeerUpBeforeItIsLost) {
  for (const auto limit : {1000ms, 15'000ms, 150'000ms}) {
    const SocketOptions options = outlasting(limit);
    EXPECT_GT(options.user_timeout, limit);
    EXPECT_GT(options.keepalive_idle + options.keepalive_count * options.keepalive_interval, limit);
  }
  EXPECT_EQ(outlasting(1000ms).user_timeout, SocketOptions().user_timeout);
}

TEST(Room, TheOldestStrangerGivesWay) {
  auto options = at({"127.0.0.1"});
  options.acceptor.max_unproven = 3;
  Node server(options), client(node_options("student/0"));
  std::vector<std::unique_ptr<RawStream>> strangers;
  for (int i = 0; i < 5; ++i)
    strangers.push_back(std::make_unique<RawStream>(server.address()));
  EXPECT_EQ(strangers[0]->drain(), "");
  EXPECT_EQ(strangers[1]->drain(), "");
  EXPECT_EQ(server.refused(Refusal::kEvicted, 2), 2u);
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
  EXPECT_EQ(server.acceptor->counters().proven_control, 1u);
  EXPECT_GE(server.acceptor->counters().proven_data, 1u);
}

// Every rank of a large run may come to one port at the same time.
void expect_all_come_in(int herd, size_t room) {
  auto options = at({"127.0.0.1"});
  options.acceptor.max_unproven = room;
  options.acceptor.silence = 60'000ms;  // however slow the machine
  Node server(options), clients(node_options("student/0"));
  const Identity identity = identity_of("student/0");
  const rpc::detail::PeerAddress address = rpc::detail::parse_address(server.address());
  std::atomic<int> proven{0}, failed{0};

  // The server takes nobody until all of them have dialed.
  std::promise<void> all_dialed;
  server.loop->post([go = all_dialed.get_future().share()] { go.wait(); });
  std::vector<std::shared_ptr<Dial>> dials;
  clients.on_loop([&] {
    for (int i = 0; i < herd; ++i) {
      const PeerPort peer{address.host, address.port, {.name = "teacher/0"}};
      dials.push_back(std::make_shared<Dial>(clients.loop->io(), identity, clients.streams,
                                             SocketOptions{}, peer));
      dials.back()->start(
          soon(), [&](const HandshakeResult& result) { ++(result.error ? failed : proven); });
    }
  });
  all_dialed.set_value();

  EXPECT_TRUE(test::wait_until([&] { return proven + failed == herd; }));
  EXPECT_EQ(proven, herd);
  // A dial is done when its last message is sent, the acceptor when it has read that.
  const AcceptorCounters& counters = server.acceptor->counters();
  EXPECT_TRUE(test::wait_until([&] { return counters.proven_control == to_size(herd); }))
      << counters.proven_control;
  EXPECT_EQ(counters.evicted(), 0u);
  EXPECT_EQ(counters.timed_out(), 0u);
  if (room == 1) {
    EXPECT_GT(counters.held_back, 0u) << "there was no room for all of them";
  }
}

TEST(Room, AHerdOfHonestPeersWaitsAndNobodyIsThrownOut) {
  expect_all_come_in(256, 1);
  expect_all_come_in(500, 16);
  expect_all_come_in(500, AcceptorOptions().max_unproven);
}

// Strangers that say nothing do not keep honest peers out.
TEST(Room, SilentStrangersGiveWayToAHerd) {
  auto options = at({"127.0.0.1"});
  options.acceptor.max_unproven = 4;
  options.acceptor.silence = 20ms;
  Node server(options), client(node_options("student/0"));
  std::vector<std::unique_ptr<RawStream>> strangers;
  for (int i = 0; i < 12; ++i)
    strangers.push_back(std::make_unique<RawStream>(server.address()));
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
  EXPECT_GE(server.refused(Refusal::kEvicted, 9), 9u);
}

// The first frame of an honest proof on this connection.
std::string hello_on(const RawStream& stream, const Identity& identity) {
  return ClientRules(identity, {.name = "teacher/0"}, stream.facts()).hello();
}

// Who does not know the secret has no place for longer than his first frame, however many come.
TEST(Room, AFloodOfHellosWithoutTheSecretKeepsNobodyOut) {
  auto options = at({"127.0.0.1"});
  options.acceptor.max_unproven = 16;
  Node server(options), client(node_options("student/0"));
  Identity guesser = identity_of("student/1");
  guesser.credentials[0].secret = "a guess";
  std::atomic<bool> over{false};
  std::thread flood([&] {
    std::deque<RawStream> strangers;
    while (!over) {
      strangers.emplace_back(server.address());
      strangers.back().send(hello_on(strangers.back(), guesser));
      if (strangers.size() > 200) strangers.pop_front();
      std::this_thread::sleep_for(1ms);  // so that the system has ports for a whole test
    }
  });
  const AcceptorCounters& counters = server.acceptor->counters();
  EXPECT_TRUE(test::wait_until([&] { return counters.of(Refusal::kProof) > 100; }));
  const auto start = Deadline::Clock::now();
  for (int i = 0; i < 20; ++i)
    EXPECT_FALSE(client.dial(server.address(), {.name = "teacher/0"}).error);
  const auto took = Deadline::Clock::now() - start;
  over = true;
  flood.join();
  EXPECT_LT(took, 20s) << "twenty dials, one after the other; a place is held for 60 s";
  EXPECT_EQ(counters.evicted(), 0u);
}

// Of those who know the secret, or repeat what they have heard: half a proof is not for ever.
TEST(Room, HalfProofsGiveWay) {
  auto options = at({"127.0.0.1"});
  options.acceptor.max_unproven = 4;
  options.acceptor.silence = 50ms;
  Node server(options), client(node_options("student/0"));
  std::vector<std::unique_ptr<RawStream>> halves;
  for (int i = 0; i < 8; ++i) {
    halves.push_back(std::make_unique<RawStream>(server.address()));
    halves.back()->send(hello_on(*halves.back(), identity_of("student/1")));
  }
  EXPECT_FALSE(client.dial(server.address(), {.name = "teacher/0"}).error);
  EXPECT_GE(server.refused(Refusal::kEvicted, 5), 5u);
  EXPECT_EQ(server.acceptor->counters().timed_out(), 0u);
}

TEST(Room, WithoutDescriptorsTheOldestStrangerGivesWay) {
  auto server = spawn_node("basic", false, 40);
  Node client(node_options("student/0"));
  const auto session = client.connect("teacher/0", server.address);
  const auto pipe = client.pipe(session);
  ASSERT_TRUE(answers(pipe));
  std::vector<std::unique_ptr<RawStream>> strangers;
  for (int i = 0; i < 200; ++i)
    strangers.push_back(std::make_unique<RawStream>(server.address));
  EXPECT_TRUE(answers(pipe));
  EXPECT_TRUE(answers(client.pipe(session))) << "a new pipe, among the strangers";
  server.process.write_line("errors");
  EXPECT_GT(std::stoi(server.process.read_line(soon())), 0) << "the limit was met";
  server.process.write_line("evicted");
  EXPECT_GT(std::stoi(server.process.read_line(soon())), 0);
  strangers.clear();
  EXPECT_TRUE(answers(client.pipe(session)));
  server.process.close_stdin();
  EXPECT_EQ(server.process.wait(soon()), 0);
}

TEST(Dialing, SaysWhatWentWrong) {
  Node server(at({"127.0.0.1"})), client(node_options("student/0"));
  const auto refused = client.dial("127.0.0.1:1", {.name = "teacher/0"});
  EXPECT_EQ(refused.error->code(), ErrorCode::kPeerLost);
  const auto port = client.dial("127.0.0.1:99999", {.name = "teacher/0"});
  EXPECT_EQ(port.error->code(), ErrorCode::kPeerLost) << port.error->what();
  const auto name = client.dial("no-such-host.invalid:5", {.name = "teacher/0"});
  EXPECT_EQ(name.error->code(), ErrorCode::kPeerLost);
  const auto wrong = client.dial(server.address(), {.name = "teacher/1"});
  EXPECT_EQ(wrong.refusal, Refusal::kPeer);
  EXPECT_EQ(wrong.error->code(), ErrorCode::kUnauthenticated);
}

TEST(Dialing, ADeadlineHoldsAgainstASilentServer) {
  Node client(node_options("student/0"));
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  const auto port = std::to_string(silent.local_endpoint().port());
  std::promise<HandshakeResult> promise;
  client.on_loop([&] {
    std::make_shared<Dial>(client.loop->io(), client.options.identity, client.streams,
                           SocketOptions{}, PeerPort{"127.0.0.1", port, {.name = "teacher/0"}})
        ->start(Deadline::after(50ms),
                [&](HandshakeResult result) { promise.set_value(std::move(result)); });
  });
  EXPECT_EQ(promise.get_future().get().error->code(), ErrorCode::kTimeout);
}

TEST(Dialing, TheEndOfASessionEndsItsDials) {
  auto options = node_options("student/0");
  Node client(options);
  client.on_loop([&] {
    client.sessions->open({.peer = "teacher/0", .session = "s", .key = std::string(32, 'k')},
                          "127.0.0.1", "1");
  });
  auto answer = receive(client.pipe("s"));  // nobody answers: it tries again and again
  client.on_loop([&] { client.sessions->end("s"); });
  EXPECT_TRUE(answer.get()->error);

  client.on_loop([&] {
    client.sessions->open({.peer = "teacher/0", .session = "t", .key = std::string(32, 'k')},
                          "127.0.0.1", "1");
  });
  answer = receive(client.pipe("t"));
  client.close();  // ends its dials too, long before their deadline
  EXPECT_TRUE(answer.get()->error);
}

}  // namespace
}  // namespace retort::rpc::transport::testing
