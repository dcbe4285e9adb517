// One request and its answer on one connection, which is opened first if it is not.
//
//   open -> write -> wait -> read -> done
//     '-------'-------'-------'----> done, with an error; the connection is closed
//
// A server may answer, and close, before it has read the whole request (413, 429): the answer is
// awaited while the request is written, and counts also where writing failed.
//
// Threads: the one that runs the io_context. `done` runs there once, unless stop() comes first.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "http/detail/connection.h"
#include "http/detail/response_reader.h"
#include "http/message.h"

namespace retort::http::detail {

// A request as it goes out; lives until nothing of it is under way.
struct Outgoing {
  Request request;
  std::string head;
  std::string secret;  // the key, which errors must not show
};

// What ClientCounters shows.
struct Traffic {
  std::atomic<uint64_t> requests{0}, attempts{0}, retries{0}, pauses{0};
  std::atomic<uint64_t> connections{0}, bytes_out{0}, bytes_in{0};
};

struct ExchangeResult {
  std::exception_ptr error;  // null: `response` is complete
  Response response;
  bool reusable = false;    // another request may follow on the connection
  bool unanswered = false;  // the connection broke before the first byte of an answer
  bool broke = false;       // the connection failed, and the caller has taken nothing of an answer
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Done = std::function<void(ExchangeResult)>;

  // `traffic` outlives it.
  Exchange(boost::asio::io_context& io, std::shared_ptr<const Outgoing> outgoing,
           std::shared_ptr<Connection> connection, Traffic& traffic);

  void start(Duration connect_timeout, Done done);
  // Closes the connection.
  void stop();
  // The step, for errors: "waiting for the answer".
  std::string doing() const;

 private:
  using Time = Deadline::Clock::time_point;
  enum class Step { kOpen, kWrite, kWait, kRead };

  void open();
  void talk();
  void write();
  void written(size_t bytes);
  void read();
  void received(size_t bytes);
  void ended();

  bool all_written() const { return num_written_ == unwritten_.size(); }
  void enter(Step step);
  void watch();
  void check_limits();
  void connection_broke(const Connection::Code& code);
  // The connection's failure.
  void lose(std::exception_ptr error, bool unanswered = false);
  void fail(std::exception_ptr error);
  void finish(ExchangeResult result);

  const std::shared_ptr<const Outgoing> outgoing_;
  const std::shared_ptr<Connection> connection_;
  Traffic& traffic_;
  ResponseReader reader_;
  std::vector<boost::asio::const_buffer> unwritten_;
  size_t num_written_ = 0;          // of them; the next may be written in part
  Connection::Code write_failure_;  // the answer may come all the same
  boost::asio::steady_timer timer_;
  Time attempt_end_{}, open_end_{}, moved_{};  // moved_: when the last byte went or came
  Duration connect_timeout_{};
  Step step_ = Step::kOpen;
  bool opened_ = false;  // the connection is a new one
  Done done_;            // empty once it ran
};

}  // namespace retort::http::detail
