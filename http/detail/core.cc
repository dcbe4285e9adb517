#include "http/detail/core.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "http/detail/call.h"
#include "http/detail/request_head.h"
#include "http/detail/tls.h"

namespace retort::http::detail {

namespace asio = boost::asio;

Core::Core(std::shared_ptr<asio::io_context> io, ClientOptions options)
    : io_(std::move(io)), options_(std::move(options)) {
  if (!options_.ca_file.empty()) make_tls();
}

void Core::make_tls() {
  std::call_once(tls_made_, [this] { tls_ = make_tls_context(options_.ca_file); });
}

Future<Response> Core::send(Request request, Deadline deadline) {
  Header key;
  if (!options_.api_key.empty()) {
    const bool bearer = options_.api_key_header == "Authorization";
    key = {options_.api_key_header, (bearer ? "Bearer " : "") + options_.api_key};
  }
  std::string head = request_head(request, key);
  // The certificates are read on the caller's thread, not on the one that serves all requests.
  if (request.url.tls) make_tls();

  // Tickets are drawn here, so that the line keeps the order of the calls.
  ++traffic_.requests;
  Promise<Response> promise;
  auto future = promise.future();
  auto outgoing = std::make_shared<const Outgoing>(
      Outgoing{std::move(request), std::move(head), options_.api_key});
  auto call = std::make_shared<Call>(shared_from_this(), next_ticket_++, std::move(outgoing),
                                     deadline, promise);
  promise.on_cancel([weak = std::weak_ptr<Call>(call)] {
    if (const auto self = weak.lock()) self->cancel_later();
  });
  asio::post(*io_, [call = std::move(call)] { call->start(); });
  return future;
}

std::shared_ptr<Origin> Core::origin(const Url& url) {
  auto& origin = origins_[url.origin()];
  if (!origin) origin = std::make_shared<Origin>(*io_, options_.max_inflight, options_.keep_idle);
  return origin;
}

std::shared_ptr<Connection> Core::new_connection(const Url& url) {
  return std::make_shared<Connection>(*io_, url, url.tls ? tls_.get() : nullptr);
}

void Core::close_later() {
  asio::post(*io_, [self = shared_from_this()] { self->close(); });
}

// The list is asked anew each time: a call that ends takes itself off it, and runs code of the
// caller.
void Core::close() {
  closed_ = true;
  for (const auto& [name, origin] : origins_)
    origin->close();
  while (!calls_.empty())
    (*calls_.begin())->end(Error(ErrorCode::kClosed, "the client was closed"));
}

ClientCounters Core::counters() const {
  return {.requests = traffic_.requests,
          .attempts = traffic_.attempts,
          .retries = traffic_.retries,
          .pauses = traffic_.pauses,
          .connections = traffic_.connections,
          .bytes_out = traffic_.bytes_out,
          .bytes_in = traffic_.bytes_in};
}

}  // namespace retort::http::detail
