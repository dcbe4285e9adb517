#include "tests/http/scripted_server.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace retort::test {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace protocol = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

std::string lower(std::string text) {
  for (char& c : text)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// `Stream`: the socket itself, or TLS over it.
template <class Stream>
class PeerOn final : public Peer {
 public:
  PeerOn(int index, tcp::socket& socket, Stream& stream)
      : index_(index), socket_(socket), stream_(stream) {}

  int index() const override { return index_; }

  std::optional<Received> read() override {
    protocol::request_parser<protocol::string_body> parser;
    parser.body_limit(boost::none);
    error_code error;
    protocol::read(stream_, buffer_, parser, error);
    if (error) return std::nullopt;

    const auto& request = parser.get();
    Received received{.method = std::string(request.method_string()),
                      .target = std::string(request.target()),
                      .body = request.body()};
    for (const auto& field : request)
      received.headers[lower(std::string(field.name_string()))] = std::string(field.value());
    return received;
  }

  bool write(std::string_view bytes) override {
    error_code error;
    asio::write(stream_, asio::buffer(bytes.data(), bytes.size()), error);
    return !error;
  }

  void close() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
  }

  void wait_closed() override {
    char bytes[4096];
    error_code error;
    while (!error)
      socket_.read_some(asio::buffer(bytes), error);
  }

 private:
  const int index_;
  tcp::socket& socket_;
  Stream& stream_;
  beast::flat_buffer buffer_;
};

}  // namespace

struct ScriptedServer::Impl {
  Impl(Script given, const std::string& address)
      : script(std::move(given)),
        acceptor(context, tcp::endpoint(asio::ip::make_address(address), 0)) {}

  void serve(int index, tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    {
      const std::lock_guard lock(mutex);
      if (stopping) return;
      open.insert(socket.native_handle());
    }
    run_script(index, socket);
    const std::lock_guard lock(mutex);
    open.erase(socket.native_handle());
  }

  void run_script(int index, tcp::socket& socket) {
    if (!tls) {
      PeerOn<tcp::socket> peer(index, socket, socket);
      return script(peer);
    }
    asio::ssl::stream<tcp::socket&> stream(socket, *tls);
    error_code error;
    stream.handshake(asio::ssl::stream_base::server, error);
    if (error) return;
    PeerOn<asio::ssl::stream<tcp::socket&>> peer(index, socket, stream);
    script(peer);
  }

  void accept() {
    for (;;) {
      error_code error;
      tcp::socket socket(context);
      acceptor.accept(socket, error);
      if (stopping) return;
      if (error) continue;
      const int index = num_connections++;
      threads.emplace_back(
          [this, index, s = std::move(socket)]() mutable { serve(index, std::move(s)); });
    }
  }

  const Script script;
  asio::io_context context;
  std::optional<asio::ssl::context> tls;
  tcp::acceptor acceptor;
  std::atomic<bool> stopping{false};
  std::atomic<int> num_connections{0};
  std::mutex mutex;
  std::set<int> open;                // descriptors
  std::vector<std::thread> threads;  // of connections; the acceptor's
  std::thread acceptor_thread;
};

ScriptedServer::ScriptedServer(Script script, std::optional<Certificate> certificate,
                               const std::string& address)
    : impl_(std::make_unique<Impl>(std::move(script), address)),
      host_(address.find(':') == std::string::npos ? address : "[" + address + "]") {
  if (certificate) {
    auto& tls = impl_->tls.emplace(asio::ssl::context::tls_server);
    tls.use_certificate_chain(asio::buffer(certificate->chain));
    tls.use_private_key(asio::buffer(certificate->key), asio::ssl::context::pem);
  }
  impl_->acceptor_thread = std::thread([this] { impl_->accept(); });
}

ScriptedServer::~ScriptedServer() {
  const tcp::endpoint here = impl_->acceptor.local_endpoint();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    for (const int descriptor : impl_->open)
      ::shutdown(descriptor, SHUT_RDWR);
  }
  error_code ignored;
  tcp::socket wake(impl_->context);
  wake.connect(here, ignored);
  impl_->acceptor_thread.join();
  for (std::thread& thread : impl_->threads)
    thread.join();
}

std::string ScriptedServer::url_of(const std::string& host, const std::string& path) const {
  return (impl_->tls ? "https://" : "http://") + host + ":" +
         std::to_string(impl_->acceptor.local_endpoint().port()) + path;
}

int ScriptedServer::num_connections() const { return impl_->num_connections; }

ScriptedServer::Script answer_all(std::function<std::string(const Received&)> answer) {
  return [answer = std::move(answer)](Peer& peer) {
    while (const auto request = peer.read())
      if (!peer.write(answer(*request))) return;
  };
}

std::string reply(int status, std::string_view body, std::string_view more_lines) {
  return "HTTP/1.1 " + std::to_string(status) +
         " Because\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(more_lines) + "\r\n" +
         std::string(body);
}

}  // namespace retort::test
