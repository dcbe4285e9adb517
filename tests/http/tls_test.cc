// Servers under TLS that are who they say, and others.
#include <gtest/gtest.h>

#include "http/client.h"
#include "tests/http/requests.h"
#include "tests/support/folder_fixture.h"

namespace retort::http {
namespace {

using test::Certificate, test::Received, test::ask, test::failure, test::post_to, test::reply;

class TlsTest : public test::FolderTest {
 protected:
  ClientOptions trusting(const test::Authority& authority) {
    put(folder_ / "ca.pem", authority.pem());
    return {.ca_file = folder_ / "ca.pem"};
  }
  // The error of a request to a server with this certificate, by this name.
  Error refused(const Certificate& certificate, const std::string& host = "127.0.0.1") {
    const test::ScriptedServer server(echo_, certificate);
    Client client(trusting(authority_));
    const Error error = failure(client, post_to(server.url_of(host)));
    EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated) << error.what();
    EXPECT_EQ(test::context_of(error, "url"), server.url_of(host));
    return error;
  }
  static void expect_part(const Error& error, const std::string& part) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.what();
  }

  const test::Authority authority_;
  const test::ScriptedServer::Script echo_ =
      test::answer_all([](const Received& request) { return reply(200, request.body); });
};

TEST_F(TlsTest, TrustsWhoProvesItsName) {
  const test::ScriptedServer server(echo_, authority_.issue());
  Client client(trusting(authority_));
  for (const char* host : {"127.0.0.1", "localhost"})
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(ask(client, post_to(server.url_of(host), "hello")).body, "hello") << host;
  EXPECT_EQ(client.counters().connections, 2u) << "one for each name";
  EXPECT_EQ(client.counters().retries, 0u);
}

TEST_F(TlsTest, MovesLargeBodies) {
  const test::ScriptedServer server(echo_, authority_.issue());
  Client client(trusting(authority_));
  const std::string body(5'000'003, 'x');
  EXPECT_TRUE(ask(client, post_to(server.url(), body)).body == body);
}

TEST_F(TlsTest, RefusesAnotherName) {
  const auto certificate = authority_.issue({.names = {"DNS:a.example", "IP:10.0.0.1"}});
  expect_part(refused(certificate, "localhost"),
              "is for 'DNS:a.example, IP Address:10.0.0.1', not for 'localhost'");
  expect_part(refused(certificate, "127.0.0.1"), "not for '127.0.0.1'");
  expect_part(refused(authority_.issue({.names = {"DNS:127.0.0.1"}})), "not for '127.0.0.1'");
}

TEST_F(TlsTest, RefusesOtherTimes) {
  expect_part(refused(authority_.issue({.valid_from_seconds = -7200, .valid_to_seconds = -3600})),
              "'CN = server of a test' has expired (");
  expect_part(refused(authority_.issue({.valid_from_seconds = 3600, .valid_to_seconds = 7200})),
              "is not valid before ");
}

TEST_F(TlsTest, RefusesOtherAuthorities) {
  const test::Authority other;
  expect_part(refused(other.issue()), "not signed by an authority that is trusted here");
  expect_part(refused(other.issue()), "as ca_file");

  const test::ScriptedServer server(echo_, authority_.issue());
  Client client;  // the system's
  EXPECT_EQ(failure(client, post_to(server.url())).code(), ErrorCode::kUnauthenticated);
}

TEST_F(TlsTest, NeedsTlsOnBothSides) {
  const test::ScriptedServer plain(
      [](test::Peer& peer) { peer.write("HTTP/1.1 400 Bad Request\r\n\r\n"); });
  Client client(trusting(authority_));
  const std::string url = plain.url();
  const Error error = failure(client, post_to("https" + url.substr(4)));
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
  expect_part(error, "does the server speak TLS");

  const test::ScriptedServer tls(echo_, authority_.issue());
  const Error reverse = failure(client, post_to("http" + tls.url().substr(5)));
  EXPECT_EQ(reverse.code(), ErrorCode::kUnavailable) << reverse.what();
  expect_part(reverse, "write https://");
}

TEST_F(TlsTest, SeesAnAnswerThatIsCutOff) {
  for (const std::string head : {"Content-Length: 17\r\n", "Transfer-Encoding: chunked\r\n", ""}) {
    const test::ScriptedServer server(
        [&](test::Peer& peer) {
          peer.read();
          peer.write("HTTP/1.1 200 OK\r\n" + head + "\r\n5\r\nab");
          peer.close();
        },
        authority_.issue());
    Client client(trusting(authority_));
    const Error error = failure(client, post_to(server.url()));
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << head << error.what();
    expect_part(error, "ends too early");
  }
}

TEST_F(TlsTest, AHandshakeHasALimit) {
  const test::ScriptedServer silent([](test::Peer& peer) { peer.wait_closed(); });
  Client client({.connect_timeout = std::chrono::milliseconds(300)});
  const Error error = failure(client, post_to("https" + silent.url().substr(4)));
  EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
  expect_part(error, "connect_timeout of 300ms");
}

TEST_F(TlsTest, AFileWithoutCertificatesIsRefused) {
  const std::string file = folder_ / "empty.pem";
  put(file, "nothing");
  test::expect_refused("ca_file " + file, [&] { Client client({.ca_file = file}); });
}

}  // namespace
}  // namespace retort::http
