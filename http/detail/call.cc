#include "http/detail/call.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "http/detail/core.h"
#include "http/detail/quoted_text.h"
#include "http/detail/retry_after.h"
#include "http/message.h"
#include "http/url.h"

namespace retort::http::detail {

using boost::system::error_code;

namespace {

constexpr Duration kPauseBeforeResend{200};

ErrorCode code_for(int status) {
  if (status == 401 || status == 403) return ErrorCode::kUnauthenticated;
  const bool later = status == 408 || status == 425 || status == 429 || status >= 500;
  return later ? ErrorCode::kUnavailable : ErrorCode::kMismatch;
}

std::string advice_for(const Request& request, int status) {
  switch (status) {
    case 401:
    case 403: return "check the key and what it may do";
    case 404:
      return "there is nothing for " + std::string(to_string(request.method)) + " at " +
             request.url.shown() +
             "; check the path, which this server may not serve, or only with an option of its own";
    case 413: return "the request is too large for the server";
    case 429:
    case 503: return "the server is busy or still starting; wait longer or ask for less at a time";
    default: break;
  }
  return status >= 500 ? "see the server's log" : "the server does not take this request";
}

Error redirection(const Response& response, std::string_view secret) {
  const std::string* location = find_header(response.headers, "Location");
  return Error(ErrorCode::kInvalidArgument,
               "status " + std::to_string(response.status) + ": redirected to " +
                   (location != nullptr ? shown(without_secrets(*location), secret) : "nowhere") +
                   "; redirections are not followed; write the address that answers");
}

// True if the server may take the request later. After 429 and 503 it did not begin;
// patience.server_errors adds 408 and 5xx but 501, after which it may have.
bool puts_off(const Response& response, const Patience& patience) {
  const int status = response.status;
  if (status == 429 || status == 503) return true;
  return patience.server_errors && (status == 408 || (status / 100 == 5 && status != 501));
}

// Returns the error that a complete answer is, without address, or nullopt if it is none. A
// redirection always is one, other statuses unless Request::any_status. `secret`: as in shown().
std::optional<Error> error_of_status(const Request& request, const Response& response,
                                     std::string_view secret) {
  const int kind = response.status / 100;
  if (kind == 2) return std::nullopt;
  if (kind == 3) return redirection(response, secret);
  if (request.any_status && (kind == 4 || kind == 5)) return std::nullopt;
  return Error(code_for(response.status), "status " + std::to_string(response.status) +
                                              ", expected 2xx: " + shown(response.body, secret) +
                                              "; " + advice_for(request, response.status));
}

}  // namespace

Call::Call(std::shared_ptr<Core> core, uint64_t ticket, std::shared_ptr<const Outgoing> outgoing,
           Deadline deadline, Promise<Response> promise)
    : core_(std::move(core)),
      ticket_(ticket),
      outgoing_(std::move(outgoing)),
      deadline_(deadline),
      promise_(std::move(promise)),
      end_timer_(core_->io()),
      wait_timer_(core_->io()) {}

// A call that has ended is off the list already, and may be destroyed on any thread.
Call::~Call() {
  if (!ended_) core_->remove(*this);
}

void Call::start() {
  if (core_->closed()) return end(Error(ErrorCode::kClosed, "the client was closed"));
  core_->add(*this);
  origin_ = core_->origin(request().url);
  end_timer_.expires_at(deadline_.time());
  end_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (code || self->ended_) return;
    self->end(Error(ErrorCode::kTimeout, "no complete answer before the deadline, while " +
                                             self->doing() + "; allow more time or ask for less"));
  });
  wait_for_place();
}

void Call::wait_for_place() {
  // The line holds calls weakly, because those that wait are kept alive by their timers.
  origin_->enter(ticket_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    RETORT_CHECK(self != nullptr) << "a request left the line without saying so";
    self->has_place_ = true;
    self->wait_timer_.cancel();
    // A connection that broke may have broken with the server: others that were kept are no better.
    self->attempt(self->num_resends_ > 0 ? nullptr : self->origin_->take_kept());
  });
  if (has_place_ || ended_) return;

  wait_timer_.expires_after(request().limits.place);
  wait_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (code || self->ended_ || self->has_place_) return;
    self->end(Error(ErrorCode::kTimeout,
                    "no place among the " + std::to_string(self->core_->options().max_inflight) +
                        " requests that may be in flight (max_inflight) within Limits::place of " +
                        format_duration(self->request().limits.place)));
  });
}

// `connection`: one that was kept, or null for a new one.
void Call::attempt(std::shared_ptr<Connection> connection) {
  const bool kept = connection != nullptr;
  attempt_ = kept ? std::move(connection) : core_->new_connection(request().url);
  exchange_ = std::make_shared<Exchange>(core_->io(), outgoing_, attempt_, core_->traffic());
  exchange_->start(core_->options().connect_timeout,
                   [self = shared_from_this(), kept](ExchangeResult result) {
                     self->exchange_.reset();
                     if (kept && result.unanswered) return self->lost_kept(std::move(result));
                     self->take(std::move(result));
                   });
}

// Nobody knows whether the server read the request before it closed a connection that it did not
// want any more.
void Call::lost_kept(ExchangeResult result) {
  if (request().idempotent) {
    ++core_->traffic().retries;
    return attempt(nullptr);
  }
  try {
    std::rethrow_exception(result.error);
  } catch (const Error& error) {
    end(Error(error.code(), error.message() +
                                "; it was kept from an earlier request, and this one is not sent "
                                "again because it is not marked as idempotent"));
  }
}

void Call::take(ExchangeResult result) {
  if (result.reusable) origin_->keep(std::move(attempt_));
  if (attempt_) attempt_->close();
  attempt_.reset();
  // Only after a connection that broke may another attempt end differently.
  if (result.error) {
    if (!result.broke || !may_resend()) return fail(result.error);
    ++num_resends_;
    return come_again(kPauseBeforeResend);
  }

  const Response& response = result.response;
  if (puts_off(response, request().patience) && request().patience.total.count() > 0) {
    pause(response);
    if (!ended_ && !has_place_) return;
  }
  if (ended_) return;
  if (const auto error = error_of_status(request(), response, outgoing_->secret))
    return fail(std::make_exception_ptr(*error), response.status);
  finish({.value = std::move(result.response)});
}

// Gives the place back and comes again after a while, unless that is beyond patience: then nothing
// happens, and the answer stands as it is.
void Call::pause(const Response& response) {
  const auto asked = retry_after(response.headers, std::chrono::system_clock::now());
  const double jitter =
      random_uniform(core_->options().seed, ticket_, static_cast<uint64_t>(num_pauses_));
  const Duration wait = pause_before(asked, request().patience, num_pauses_, jitter);
  if (wait > request().patience.total - paused_ || wait >= deadline_.remaining()) return;

  paused_ += wait;
  ++num_pauses_;
  come_again(wait);
}

bool Call::may_resend() const {
  return request().idempotent && num_resends_ < request().resends &&
         kPauseBeforeResend < deadline_.remaining();
}

// Stands in line again after a while, and gives the place back meanwhile.
void Call::come_again(Duration wait) {
  ++core_->traffic().pauses;
  wait_timer_.expires_after(wait);
  wait_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (code || self->ended_) return;
    ++self->core_->traffic().retries;
    self->wait_for_place();
  });
  give_place_back();
}

void Call::give_place_back() {
  if (std::exchange(has_place_, false)) origin_->leave();
}

void Call::cancel_later() {
  boost::asio::post(core_->io(), [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->end(Error(ErrorCode::kCancelled, "the request was cancelled"));
  });
}

void Call::end(Error error) { fail(std::make_exception_ptr(std::move(error))); }

void Call::fail(std::exception_ptr error, int status) {
  if (ended_) return;
  try {
    std::rethrow_exception(error);
  } catch (const Error& caught) {
    error = std::make_exception_ptr(explained(caught, status));
  } catch (...) {
    // The caller's own on_body threw this, so the caller gets it as it is.
  }
  finish({.error = std::move(error)});
}

Error Call::explained(const Error& error, int status) const {
  std::string message = error.message();
  if (num_pauses_ > 0)
    message += " (after " + std::to_string(num_pauses_) + " pauses of " + format_duration(paused_) +
               " in all)";
  if (num_resends_ > 0) message += " (sent " + std::to_string(num_resends_ + 1) + " times)";
  // A server may repeat the key, so it is taken out of all that people may read.
  Error::Context context;
  for (const auto& [key, value] : error.context())
    context.emplace_back(key, without(outgoing_->secret, value));
  context.emplace_back("request", std::string(to_string(request().method)));
  context.emplace_back("url", without(outgoing_->secret, request().url.shown()));
  if (status != 0) context.emplace_back("status", std::to_string(status));
  return Error(error.code(), without(outgoing_->secret, message), error.origin(),
               std::move(context));
}

void Call::finish(Outcome<Response> outcome) {
  if (std::exchange(ended_, true)) return;
  // The timers and the list may hold the last references to this call.
  const auto self = shared_from_this();
  end_timer_.cancel();
  wait_timer_.cancel();
  if (exchange_) exchange_->stop();
  exchange_.reset();
  if (origin_) origin_->forget(ticket_);
  give_place_back();
  core_->remove(*this);
  promise_.complete(std::move(outcome));
}

std::string Call::doing() const {
  if (exchange_) return exchange_->doing();
  const bool first = num_pauses_ == 0 && num_resends_ == 0;
  return has_place_ || first ? "waiting for a place" : "waiting to send the request again";
}

}  // namespace retort::http::detail
