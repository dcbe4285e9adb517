// One server: the requests that are in flight there, those that wait for a place, and the
// connections that are kept.
//
// Threads: the one that runs the io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/units.h"
#include "http/detail/connection.h"

namespace retort::http::detail {

class Origin : public std::enable_shared_from_this<Origin> {
 public:
  Origin(boost::asio::io_context& io, int max_inflight, Duration keep_idle);

  // Runs `go` once there is a place, at once if there is one now, else when its turn comes: the
  // lowest ticket first. A place is given back by leave().
  void enter(uint64_t ticket, std::function<void()> go);
  // Gives up waiting.
  void forget(uint64_t ticket) { line_.erase(ticket); }
  // May run `go` of others.
  void leave();

  // The connection that was kept last, if it is as it was; null if there is none.
  std::shared_ptr<Connection> take_kept();
  void keep(std::shared_ptr<Connection> connection);
  // Closes what is kept; nothing is kept any more, and nobody who waits gets a place.
  void close();

 private:
  void retire_later();
  void retire();

  const int max_inflight_;
  const Duration keep_idle_;
  int num_inflight_ = 0;
  std::map<uint64_t, std::function<void()>> line_;
  std::vector<std::shared_ptr<Connection>> kept_;  // the latest at the end
  boost::asio::steady_timer retire_timer_;
  bool retiring_ = false;  // the timer runs
  bool closed_ = false;
};

}  // namespace retort::http::detail
