// What a client and its requests share.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "http/client.h"
#include "http/detail/exchange.h"
#include "http/detail/origin.h"

namespace retort::http::detail {

class Call;

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<boost::asio::io_context> io, ClientOptions options);

  // Any thread.
  Future<Response> send(Request request, Deadline deadline);
  void close_later();
  ClientCounters counters() const;

  // What follows: the thread that runs io().
  boost::asio::io_context& io() { return *io_; }
  const ClientOptions& options() const { return options_; }
  Traffic& traffic() { return traffic_; }
  std::shared_ptr<Origin> origin(const Url& url);
  std::shared_ptr<Connection> new_connection(const Url& url);
  void add(Call& call) { calls_.insert(&call); }
  void remove(Call& call) { calls_.erase(&call); }
  bool closed() const { return closed_; }

 private:
  void close();
  // Made by the first request under TLS, on the thread that sends it: it reads files.
  void make_tls();

  const std::shared_ptr<boost::asio::io_context> io_;
  const ClientOptions options_;
  Traffic traffic_;
  std::atomic<uint64_t> next_ticket_{0};
  std::once_flag tls_made_;
  std::unique_ptr<boost::asio::ssl::context> tls_;
  std::map<std::string, std::shared_ptr<Origin>> origins_;
  std::set<Call*> calls_;
  bool closed_ = false;
};

}  // namespace retort::http::detail
