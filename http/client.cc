#include "http/client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <cstdint>
#include <utility>

#include "base/error.h"

namespace retort::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace protocol = boost::beast::http;
using boost::system::error_code;

constexpr uint64_t kMaxBodyBytes = uint64_t{64} << 20;

// One request on one connection, each step started by the one before: resolve, connect, write,
// read. Ends with an error or with a response.
class Exchange {
 public:
  Exchange(const Url& url, std::string body, const Deadline& deadline)
      : deadline_(deadline.time()) {
    request_.method(protocol::verb::post);
    request_.target(url.target);
    request_.version(11);
    request_.set(protocol::field::host, url.host_header);
    request_.set(protocol::field::user_agent, "retort");
    request_.set(protocol::field::content_type, "application/json");
    request_.set(protocol::field::accept, "application/json");
    request_.keep_alive(false);
    request_.body() = std::move(body);
    request_.prepare_payload();
    parser_.body_limit(kMaxBodyBytes);

    resolver_.async_resolve(url.host, url.port, [this](error_code error, const auto& addresses) {
      if (!failed("finding the host", error)) connect(addresses);
    });
  }

  // False at the deadline.
  bool run() {
    context_.run_until(deadline_);
    return done_ && error_ != beast::error::timeout;
  }
  const error_code& error() const { return error_; }
  const std::string& doing() const { return doing_; }  // when `error` happened
  protocol::response<protocol::string_body> release() { return parser_.release(); }

 private:
  void connect(const asio::ip::tcp::resolver::results_type& addresses) {
    stream_.expires_at(deadline_);  // holds for all that follows
    stream_.async_connect(addresses, [this](error_code error, const auto&) {
      if (!failed("connecting", error)) write();
    });
  }
  void write() {
    protocol::async_write(stream_, request_, [this](error_code error, size_t) {
      if (!failed("sending", error)) read();
    });
  }
  void read() {
    protocol::async_read(stream_, buffer_, parser_, [this](error_code error, size_t) {
      if (!failed("reading the answer", error)) done_ = true;
    });
  }
  bool failed(const char* doing, error_code error) {
    if (!error) return false;
    error_ = error;
    doing_ = doing;
    done_ = true;
    return true;
  }

  Deadline::Clock::time_point deadline_;
  asio::io_context context_;
  asio::ip::tcp::resolver resolver_{context_};
  beast::tcp_stream stream_{context_};
  beast::flat_buffer buffer_;
  protocol::request<protocol::string_body> request_;
  protocol::response_parser<protocol::string_body> parser_;
  bool done_ = false;
  error_code error_;
  std::string doing_;
};

// Beast's own errors are about the text of the answer; all others come from the network.
ErrorCode code_for(const error_code& error) {
  const auto& of_protocol = protocol::make_error_code(protocol::error::end_of_stream).category();
  return error.category() == of_protocol ? ErrorCode::kCorrupt : ErrorCode::kUnavailable;
}

}  // namespace

Response post_json(const Url& url, std::string body, const Deadline& deadline) {
  Exchange exchange(url, std::move(body), deadline);
  if (!exchange.run()) throw Error(ErrorCode::kTimeout, "no complete answer before the deadline");
  if (exchange.error())
    throw Error(code_for(exchange.error()), exchange.doing() + ": " + exchange.error().message());

  auto response = exchange.release();
  return {static_cast<int>(response.result_int()), std::move(response.body())};
}

}  // namespace retort::http
