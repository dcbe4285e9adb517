#include "http/page_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"

namespace retort::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Tcp = asio::ip::tcp;
using Code = boost::system::error_code;
using Answer = beast::http::response<beast::http::string_body>;

constexpr uint32_t kHeadBytes = 8 << 10;
constexpr std::chrono::milliseconds kAcceptAgain{100};

// A Visit is one connection, which takes requests one after the other for as long as it is kept.
class Visit : public std::enable_shared_from_this<Visit> {
 public:
  Visit(Tcp::socket socket, const PageServer::Options& options, std::function<void()> on_end)
      : stream_(std::move(socket)), options_(options), on_end_(std::move(on_end)) {}
  ~Visit() { on_end_(); }

  void read() {
    parser_.emplace();
    parser_->header_limit(kHeadBytes);
    parser_->body_limit(0);
    stream_.expires_after(std::chrono::seconds(PageServer::kPatienceSeconds));
    beast::http::async_read(stream_, buffer_, *parser_,
                            [self = shared_from_this()](const Code& code, size_t) {
                              if (!code) self->write(self->answer(self->parser_->get()));
                            });
  }

 private:
  Answer answer(const beast::http::request<beast::http::empty_body>& request) const {
    using beast::http::status;
    const bool known = request.target() == options_.path;
    const bool get = request.method() == beast::http::verb::get;
    Answer answer(!known ? status::not_found
                  : get  ? status::ok
                         : status::method_not_allowed,
                  request.version());
    answer.keep_alive(request.keep_alive());
    const bool page = known && get;
    answer.set(beast::http::field::content_type, page ? options_.content_type : "text/plain");
    answer.body() = page ? options_.page() : "this server has GET " + options_.path + "\n";
    answer.prepare_payload();
    return answer;
  }

  void write(Answer answer) {
    const auto shared = std::make_shared<Answer>(std::move(answer));
    stream_.expires_after(std::chrono::seconds(PageServer::kPatienceSeconds));
    beast::http::async_write(stream_, *shared,
                             [self = shared_from_this(), shared](const Code& code, size_t) {
                               if (!code && shared->keep_alive()) self->read();
                             });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<beast::http::request_parser<beast::http::empty_body>> parser_;
  const PageServer::Options& options_;
  std::function<void()> on_end_;
};

}  // namespace

struct PageServer::Impl {
  explicit Impl(Options of) : options(std::move(of)), acceptor(io), pause(io) {
    const std::string where = options.address + " port " + std::to_string(options.port);
    try {
      const auto found = Tcp::resolver(io).resolve(options.address, std::to_string(options.port),
                                                   Tcp::resolver::passive);
      const Tcp::endpoint endpoint = found.begin()->endpoint();
      acceptor.open(endpoint.protocol());
      acceptor.set_option(Tcp::acceptor::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
    } catch (const boost::system::system_error& error) {
      throw Error(ErrorCode::kUnavailable,
                  "cannot listen at " + where + ": " + error.code().message());
    }
    accept();
    thread = std::thread([this] { io.run(); });
  }

  ~Impl() {
    io.stop();
    thread.join();
    closing = true;
  }

  void accept() {
    if (open == kMaxConnections) return;  // a visit that ends goes on here
    accepting = true;
    acceptor.async_accept([this](const Code& code, Tcp::socket socket) {
      accepting = false;
      if (code) return accept_later();
      ++open;
      std::make_shared<Visit>(std::move(socket), options, [this] {
        --open;
        if (!accepting && !closing) accept();
      })->read();
      accept();
    });
  }

  // If no descriptor is left, say, the next attempt would fail at once too, so it comes after a
  // pause.
  void accept_later() {
    pause.expires_after(kAcceptAgain);
    pause.async_wait([this](const Code& code) {
      if (!code && !accepting) accept();
    });
  }

  // Visits end when `io` is destroyed, and use what stands before it.
  const Options options;
  int open = 0;
  bool accepting = false;
  bool closing = false;
  asio::io_context io{1};
  Tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::thread thread;
};

PageServer::PageServer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
PageServer::~PageServer() = default;

uint16_t PageServer::port() const { return impl_->acceptor.local_endpoint().port(); }

}  // namespace retort::http
