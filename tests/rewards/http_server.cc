#include "tests/rewards/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

namespace retort::test {
namespace {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Json = nlohmann::json;
using boost::system::error_code;

std::string reply(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) +
         " Because\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

std::string lengths(const std::string& request) {
  const Json parsed = Json::parse(request);
  Json scores = Json::array();
  for (const Json& input : parsed["inputs"]) {
    const std::string text = input["completion"];
    scores.push_back(text == "null" ? Json() : Json(static_cast<double>(text.size())));
  }
  return Json{{"scores", scores}}.dump();
}

// The raw answer for a path; "" to close without one.
std::string answer(const std::string& path, const std::string& request) {
  static const std::map<std::string, std::string> bodies{
      {"/count", R"({"scores": [1]})"},    {"/rubbish", "<html>It works!</html>"},
      {"/object", R"({"score": [1, 2]})"}, {"/text", R"({"scores": [1, "2"]})"},
      {"/nan", R"({"scores": [1, NaN]})"}, {"/array", "[1, 2]"}};
  if (path == "/score?kind=length") return reply(200, lengths(request));
  if (path == "/500") return reply(500, "out of memory\n" + std::string(1000, 'm'));
  if (path == "/204") return "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
  if (path == "/moved")
    return "HTTP/1.1 302 Found\r\nLocation: /score?kind=length\r\nContent-Length: 0\r\n\r\n";
  if (path == "/not-http") return "220 mail.example.org ESMTP\r\n\r\n";
  if (path == "/cut") return reply(200, R"({"scores": [1, 2]})").substr(0, 100);
  if (path == "/chunked")
    return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"scores\"\r\n9\r\n: [1, "
           "2]}\r\n0\r\n\r\n";
  const auto body = bodies.find(path);
  return body == bodies.end() ? "" : reply(200, body->second);
}

}  // namespace

struct HttpServer::Impl {
  asio::io_context context;
  tcp::acceptor acceptor{context, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::string last;
  std::vector<std::thread> threads;  // the acceptor's, then one for each connection

  void serve(tcp::socket socket) {
    beast::flat_buffer buffer;
    http::request_parser<http::string_body> parser;
    parser.body_limit(uint64_t{1} << 30);
    error_code error;
    http::read(socket, buffer, parser, error);
    if (error) return;

    const auto& request = parser.get();
    const std::string path(request.target());
    remember(request);
    if (path == "/hang" || path == "/loris") return never_end(socket, path, request.body());
    asio::write(socket, asio::buffer(answer(path, request.body())), error);
    socket.shutdown(tcp::socket::shutdown_both, error);
  }

  void remember(const http::request<http::string_body>& request) {
    const std::lock_guard lock(mutex);
    last = std::string(request.method_string()) + " " + std::string(request.target()) + " " +
           std::string(request[http::field::host]) + " " +
           std::string(request[http::field::content_type]);
  }

  // Says nothing ("/hang"), or a byte at a time ("/loris"), until the server stops.
  void never_end(tcp::socket& socket, const std::string& path, const std::string& request) {
    const std::string text = reply(200, lengths(request) + std::string(100'000, ' '));
    error_code error;
    for (size_t i = 0; !stop && !error; ++i) {
      if (path == "/loris") socket.write_some(asio::buffer(&text[i % text.size()], 1), error);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  void accept() {
    for (;;) {
      error_code error;
      tcp::socket socket(context);
      acceptor.accept(socket, error);
      if (stop) return;
      if (error) continue;
      threads.emplace_back([this, s = std::move(socket)]() mutable { serve(std::move(s)); });
    }
  }
};

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {
  port_ = impl_->acceptor.local_endpoint().port();
  impl_->threads.reserve(64);
  impl_->threads.emplace_back([this] { impl_->accept(); });
}

HttpServer::~HttpServer() {
  impl_->stop = true;
  error_code ignored;
  tcp::socket wake(impl_->context);
  wake.connect(tcp::endpoint(asio::ip::address_v4::loopback(), port_), ignored);
  impl_->threads.front().join();
  for (size_t i = 1; i < impl_->threads.size(); ++i)
    impl_->threads[i].join();
}

std::string HttpServer::last_request() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->last;
}

}  // namespace retort::test
