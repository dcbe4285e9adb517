// A reward that a service computes: one POST for each batch.
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "base/deadline.h"
#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/scorer.h"
#include "recipes/rewards/detail/url.h"

namespace retort::rewards::detail {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using Response = http::response<http::string_body>;

constexpr uint64_t kMaxBodyBytes = uint64_t{64} << 20;

// One request on one connection, each step started by the one before; ends with `failure` or with a
// response.
class Exchange {
 public:
  Exchange(const Url& url, std::string body, const Deadline& deadline)
      : deadline_(deadline.time()) {
    request_.method(http::verb::post);
    request_.target(url.target);
    request_.version(11);
    request_.set(http::field::host, url.host_header);
    request_.set(http::field::user_agent, "retort");
    request_.set(http::field::content_type, "application/json");
    request_.set(http::field::accept, "application/json");
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
  Response release() { return parser_.release(); }

 private:
  void connect(const asio::ip::tcp::resolver::results_type& addresses) {
    stream_.expires_at(deadline_);  // holds for all that follows
    stream_.async_connect(addresses, [this](error_code error, const auto&) {
      if (!failed("connecting", error)) write();
    });
  }
  void write() {
    http::async_write(stream_, request_, [this](error_code error, size_t) {
      if (!failed("sending", error)) read();
    });
  }
  void read() {
    http::async_read(stream_, buffer_, parser_, [this](error_code error, size_t) {
      if (!failed("reading the answer", error)) done_ = true;
    });
  }
  bool failed(const char* doing, error_code error) {
    if (!error) return false;
    error_ = error;
    doing_ = doing;
    return done_ = true;
  }

  Deadline::Clock::time_point deadline_;
  asio::io_context context_;
  asio::ip::tcp::resolver resolver_{context_};
  beast::tcp_stream stream_{context_};
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response_parser<http::string_body> parser_;
  bool done_ = false;
  error_code error_;
  std::string doing_;
};

class Http final : public Scorer {
 public:
  Http(std::string name, const RewardOptions& options)
      : name_(std::move(name)),
        text_(*options.url),
        url_(parse_url(text_)),
        timeout_(options.timeout.value_or(kDefaultTimeout)) {}

  Scores score(const std::vector<RewardInput>& inputs) override {
    Json list = Json::array();
    for (const RewardInput& input : inputs)
      list.push_back(to_json(input));
    Exchange exchange(url_, dump(Json{{"inputs", std::move(list)}}), Deadline::after(timeout_));
    if (!exchange.run())
      failed(ErrorCode::kTimeout, "no complete answer to " + std::to_string(inputs.size()) +
                                      " completions after " + format_duration(timeout_) +
                                      " (timeout)");
    if (exchange.error())
      failed(exchange.error().category() ==
                     http::make_error_code(http::error::end_of_stream).category()
                 ? ErrorCode::kCorrupt
                 : ErrorCode::kUnavailable,
             exchange.doing() + ": " + exchange.error().message());
    return read_scores(exchange.release(), inputs.size());
  }

 private:
  [[noreturn]] void failed(ErrorCode code, const std::string& what) const {
    fail(code, name_, text_ + ": " + what);
  }

  Scores read_scores(const Response& response, size_t count) const {
    const std::string& body = response.body();
    if (response.result_int() != 200)
      failed(ErrorCode::kUnavailable, "status " + std::to_string(response.result_int()) +
                                          " instead of 200: " + excerpt(body));
    const Json answer = Json::parse(body, nullptr, false);
    const auto refuse = [&](const std::string& why) -> void {
      failed(ErrorCode::kCorrupt,
             why + "; expected {\"scores\": [NUMBER or null, ...]}: " + excerpt(body));
    };
    if (!answer.is_object() || !answer.contains("scores") || !answer["scores"].is_array())
      refuse("the answer has no list of scores");
    const Json& list = answer["scores"];
    if (list.size() != count)
      refuse("the answer has " + std::to_string(list.size()) + " scores for " +
             std::to_string(count) + " completions");
    Scores scores(count);
    std::string why;
    for (size_t i = 0; i < count; ++i)
      if (!read_score(list[i], scores[i], why)) refuse(why);
    return scores;
  }

  std::string name_, text_;
  Url url_;
  Duration timeout_;
};

}  // namespace

std::unique_ptr<Scorer> make_http(std::string name, const RewardOptions& options) {
  return std::make_unique<Http>(std::move(name), options);
}

}  // namespace retort::rewards::detail
