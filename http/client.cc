#include "http/client.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "http/detail/core.h"

namespace retort::http {

namespace asio = boost::asio;

struct Client::OwnThread {
  std::shared_ptr<asio::io_context> io = std::make_shared<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(*io);
  std::thread thread;
};

void ClientOptions::validate() const {
  const auto refuse = [](const std::string& what) -> void {
    throw Error(ErrorCode::kInvalidArgument, "http client: " + what);
  };
  if (max_inflight < 1)
    refuse("max_inflight is " + std::to_string(max_inflight) + "; expected at least 1");
  if (connect_timeout.count() <= 0)
    refuse("connect_timeout is " + format_duration(connect_timeout) + "; expected more than 0");
  if (keep_idle.count() < 0)
    refuse("keep_idle is " + format_duration(keep_idle) + "; expected at least 0");
  if (!api_key.empty() && api_key_header.empty()) refuse("api_key_header is empty");
}

Client::Client(ClientOptions options) {
  options.validate();
  own_ = std::make_unique<OwnThread>();
  core_ = std::make_shared<detail::Core>(own_->io, std::move(options));
  own_->thread = std::thread([io = own_->io.get()] {
    future_detail::LoopThreadScope scope;
    io->run();  // a handler that throws is a bug and ends the process
  });
}

Client::Client(asio::io_context& io, ClientOptions options) {
  options.validate();
  const std::shared_ptr<asio::io_context> borrowed(&io, [](asio::io_context*) {});
  core_ = std::make_shared<detail::Core>(borrowed, std::move(options));
}

Client::~Client() {
  core_->close_later();
  if (!own_) return;
  RETORT_CHECK(own_->thread.get_id() != std::this_thread::get_id())
      << "a client cannot be destroyed on its own thread";
  own_->work.reset();
  own_->thread.join();
}

Future<Response> Client::send(Request request, Deadline deadline) {
  return core_->send(std::move(request), deadline);
}

ClientCounters Client::counters() const { return core_->counters(); }

}  // namespace retort::http
