// One request of a client from send() to its future, over all its attempts.
//
//   wait for a place -> attempt -> answer
//         ^                |  429, 503, or it broke
//         '---- pause <----'
//
// Threads: the one that runs the io_context; cancel_later() any.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "http/detail/exchange.h"
#include "http/detail/origin.h"

namespace retort::http::detail {

class Core;

class Call : public std::enable_shared_from_this<Call> {
 public:
  // `ticket`: the place in line. `origin` is of the request's server.
  Call(std::shared_ptr<Core> core, uint64_t ticket, std::shared_ptr<const Outgoing> outgoing,
       Deadline deadline, Promise<Response> promise);
  ~Call();

  void start();
  // Ends it with this error, unless it has ended.
  void end(Error error);
  void cancel_later();

 private:
  void wait_for_place();
  void attempt(std::shared_ptr<Connection> connection);
  void lost_kept(ExchangeResult result);
  void take(ExchangeResult result);
  void pause(const Response& response);
  bool may_resend() const;
  void come_again(Duration wait);
  void give_place_back();
  // `error` as a caller gets it: with the address, without the key.
  void fail(std::exception_ptr error, int status = 0);
  Error explained(const Error& error, int status) const;
  void finish(Outcome<Response> outcome);
  std::string doing() const;
  const Request& request() const { return outgoing_->request; }

  const std::shared_ptr<Core> core_;  // outlives all below
  const uint64_t ticket_;
  const std::shared_ptr<const Outgoing> outgoing_;
  const Deadline deadline_;
  Promise<Response> promise_;
  std::shared_ptr<Origin> origin_;
  std::shared_ptr<Exchange> exchange_;    // while one is under way
  std::shared_ptr<Connection> attempt_;   // its connection
  boost::asio::steady_timer end_timer_;   // the deadline
  boost::asio::steady_timer wait_timer_;  // a place, or a pause
  Duration paused_{0};
  int num_pauses_ = 0;   // of patience
  int num_resends_ = 0;  // of what broke
  bool has_place_ = false;
  bool ended_ = false;
};

}  // namespace retort::http::detail
