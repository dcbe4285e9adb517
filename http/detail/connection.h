// One connection to a server, plain or under TLS, with a single request on it at a time.
//
// Threads: the one that runs the io_context; handlers run there, never inline. Operations keep the
//   connection alive; after close() they end with operation_aborted.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "http/detail/tls.h"
#include "http/url.h"

namespace retort::http::detail {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Code = boost::system::error_code;
  using Handler = std::function<void(const Code&)>;
  using TransferHandler = std::function<void(const Code&, size_t bytes)>;

  // `tls`: null for a plain one; outlives it.
  Connection(boost::asio::io_context& io, const Url& url, boost::asio::ssl::context* tls);

  // Finds the host, connects to its first address that answers, and agrees on keys. Once.
  void open(Handler handler);
  bool is_open() const { return open_; }
  // What open() does: "connecting".
  const std::string& doing() const { return doing_; }
  // The error that `code` of open() means.
  Error open_error(const Code& code) const;

  void read_some(boost::asio::mutable_buffer to, TransferHandler handler);
  void write_some(const std::vector<boost::asio::const_buffer>& from, TransferHandler handler);
  void close();

  // True if a request may be written: the server has neither closed it nor said something unasked.
  bool is_quiet();

  // When it was put aside (Origin).
  void set_idle_since(Deadline::Clock::time_point time) { idle_since_ = time; }
  Deadline::Clock::time_point idle_since() const { return idle_since_; }

 private:
  using Tcp = boost::asio::ip::tcp;

  void connect(std::vector<Tcp::endpoint> endpoints, Handler handler);
  void connected(const Handler& handler);

  const std::string host_;
  const std::string port_;
  Tcp::resolver resolver_;
  Tcp::socket socket_;
  std::string certificate_problem_;  // outlives tls_, which writes it
  std::optional<TlsSocket> tls_;
  std::string doing_ = "finding the host";
  bool open_ = false;
  bool closed_ = false;  // for good: a look-up that comes later connects nothing
  Deadline::Clock::time_point idle_since_{};
};

// kResourceExhausted where this process may open no more sockets, else kUnavailable.
ErrorCode code_of_network(const boost::system::error_code& code);

}  // namespace retort::http::detail
