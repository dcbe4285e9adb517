#include "http/detail/exchange.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <utility>

#include "base/error.h"

namespace retort::http::detail {

namespace asio = boost::asio;

namespace {
constexpr size_t kBuffersAtOnce = 16;
}

Exchange::Exchange(asio::io_context& io, std::shared_ptr<const Outgoing> outgoing,
                   std::shared_ptr<Connection> connection, Traffic& traffic)
    : outgoing_(std::move(outgoing)),
      connection_(std::move(connection)),
      traffic_(traffic),
      reader_(outgoing_->request, outgoing_->secret),
      timer_(io) {
  unwritten_.emplace_back(outgoing_->head.data(), outgoing_->head.size());
  for (const Piece& piece : outgoing_->request.body)
    if (!piece.bytes.empty()) unwritten_.emplace_back(piece.bytes.data(), piece.bytes.size());
}

void Exchange::start(Duration connect_timeout, Done done) {
  done_ = std::move(done);
  connect_timeout_ = connect_timeout;
  const Time now = Deadline::Clock::now();
  attempt_end_ = now + outgoing_->request.limits.attempt;
  open_end_ = now + connect_timeout;
  ++traffic_.attempts;
  connection_->is_open() ? talk() : open();
}

void Exchange::open() {
  enter(Step::kOpen);
  opened_ = true;
  ++traffic_.connections;
  connection_->open([self = shared_from_this()](const Connection::Code& code) {
    if (!self->done_) return;
    if (!code) return self->talk();
    self->lose(std::make_exception_ptr(self->connection_->open_error(code)));
  });
}

void Exchange::talk() {
  enter(Step::kWrite);
  // Reading begins first: a server may refuse a large request before it has read all of it.
  read();
  write();
}

void Exchange::write() {
  const size_t end = std::min(num_written_ + kBuffersAtOnce, unwritten_.size());
  const std::vector<asio::const_buffer> next(unwritten_.data() + num_written_,
                                             unwritten_.data() + end);
  connection_->write_some(next,
                          [self = shared_from_this()](const Connection::Code& code, size_t bytes) {
                            if (!self->done_) return;
                            if (!code) return self->written(bytes);
                            // What the server said before it closed is still there to be read.
                            self->write_failure_ = code;
                            if (self->step_ == Step::kWrite) self->enter(Step::kWait);
                          });
}

void Exchange::written(size_t bytes) {
  traffic_.bytes_out += bytes;
  moved_ = Deadline::Clock::now();
  while (!all_written() && bytes >= unwritten_[num_written_].size())
    bytes -= unwritten_[num_written_++].size();
  if (!all_written()) {
    unwritten_[num_written_] += bytes;
    return write();
  }
  if (step_ == Step::kWrite) enter(Step::kWait);
}

void Exchange::read() {
  const auto room = reader_.room();
  connection_->read_some(asio::mutable_buffer(room.data(), room.size()),
                         [self = shared_from_this()](const Connection::Code& code, size_t bytes) {
                           if (!self->done_) return;
                           if (!code) return self->received(bytes);
                           // A server that closes without the goodbye of TLS may have been cut off.
                           const bool end = code == asio::error::eof;
                           if (end && self->reader_.started()) return self->ended();
                           self->connection_broke(code);
                         });
}

void Exchange::received(size_t bytes) {
  traffic_.bytes_in += bytes;
  try {
    const bool complete = reader_.add(bytes);
    if (reader_.begun())
      enter(Step::kRead);
    else if (step_ == Step::kRead)  // the end of an interim answer
      enter(all_written() ? Step::kWait : Step::kWrite);
    if (!complete) return read();
    const bool reusable = reader_.reusable() && all_written();
    finish({.response = reader_.release(), .reusable = reusable});
  } catch (...) {
    fail(std::current_exception());
  }
}

void Exchange::ended() {
  try {
    reader_.add_end();
    finish({.response = reader_.release()});
  } catch (...) {
    lose(std::current_exception());
  }
}

void Exchange::connection_broke(const Connection::Code& code) {
  const Connection::Code& cause = write_failure_ ? write_failure_ : code;
  const bool unanswered = !reader_.started();
  const std::string when = unanswered ? "before an answer" : reader_.progress();
  // TLS has an end of its own; an answer without it may have been cut by anybody.
  if (!unanswered && cause == asio::ssl::error::stream_truncated)
    return lose(std::make_exception_ptr(
        Error(ErrorCode::kCorrupt, "the answer ends too early, " + when +
                                       "; the server or a proxy broke off (TLS without its end)")));

  const bool closed = cause == asio::error::eof || cause == asio::ssl::error::stream_truncated;
  const std::string how = closed ? "closed by the server" : "lost (" + cause.message() + ")";
  const bool maybe_tls = unanswered && opened_ && !outgoing_->request.url.tls;
  const std::string advice = maybe_tls ? "; if the server speaks TLS, write https://" : "";
  lose(std::make_exception_ptr(
           Error(code_of_network(cause), "the connection was " + how + " " + when + advice)),
       unanswered);
}

void Exchange::enter(Step step) {
  moved_ = Deadline::Clock::now();
  if (step == step_ && step != Step::kOpen) return;
  step_ = step;
  watch();
}

// The timer looks again at the earliest time at which a limit may be passed; what moves meanwhile
// does not have to start it anew.
void Exchange::watch() {
  Time next = attempt_end_;
  if (step_ == Step::kOpen) next = std::min(next, open_end_);
  if (step_ == Step::kWrite || step_ == Step::kRead)
    next = std::min(next, moved_ + outgoing_->request.limits.idle);
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (!code && self->done_) self->check_limits();
  });
}

void Exchange::check_limits() {
  const Time now = Deadline::Clock::now();
  const Limits& limits = outgoing_->request.limits;
  const bool moves = step_ == Step::kWrite || step_ == Step::kRead;
  std::string limit;
  if (step_ == Step::kOpen && now >= open_end_)
    limit = "connect_timeout of " + format_duration(connect_timeout_);
  else if (moves && now >= moved_ + limits.idle)
    limit = "no byte for Limits::idle of " + format_duration(limits.idle);
  else if (now >= attempt_end_)
    limit = "Limits::attempt of " + format_duration(limits.attempt);
  if (limit.empty()) return watch();
  fail(std::make_exception_ptr(
      Error(ErrorCode::kTimeout, doing() + ": " + limit + " passed; is the server overloaded?")));
}

std::string Exchange::doing() const {
  switch (step_) {
    case Step::kOpen: return connection_->doing();
    case Step::kWrite: return "sending the request";
    case Step::kWait: return "waiting for the answer";
    case Step::kRead: return "reading the answer, " + reader_.progress();
  }
  return "";
}

void Exchange::stop() {
  done_ = nullptr;
  timer_.cancel();
  connection_->close();
}

void Exchange::lose(std::exception_ptr error, bool unanswered) {
  connection_->close();
  finish({.error = std::move(error), .unanswered = unanswered, .broke = !reader_.gave_body()});
}

void Exchange::fail(std::exception_ptr error) {
  connection_->close();
  finish({.error = std::move(error)});
}

void Exchange::finish(ExchangeResult result) {
  timer_.cancel();
  const Done done = std::exchange(done_, nullptr);
  done(std::move(result));
}

}  // namespace retort::http::detail
