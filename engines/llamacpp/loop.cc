#include "engines/llamacpp/loop.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace retort::engines::llamacpp {

namespace asio = boost::asio;

Loop::Loop() : work_(asio::make_work_guard(io_)) {
  thread_ = std::thread([this] {
    const future_detail::LoopThreadScope scope;
    io_.run();  // a handler that throws is a bug and ends the process
  });
}

Loop::~Loop() {
  RETORT_CHECK(thread_.get_id() != std::this_thread::get_id())
      << "an engine cannot be destroyed on its own thread";
  post([this] {
    // Timers belong to the loop's thread, so they are cancelled there. Their handlers run before
    // run() returns, and a pause that one of them begins ends at once (closing_).
    closing_ = true;
    for (const auto& timer : timers_)
      timer->cancel();
  });
  work_.reset();
  thread_.join();
}

void Loop::post(std::function<void()> fn) { asio::post(io_, std::move(fn)); }

Future<Empty> Loop::pause_until(Deadline at) {
  const auto timer = std::make_shared<Timer>(io_, at.time());
  Promise<Empty> promise;
  Future<Empty> future = promise.future();
  timers_.insert(timer);

  timer->async_wait([this, timer, promise](const boost::system::error_code& stopped) mutable {
    timers_.erase(timer);
    if (!stopped) {
      promise.set_value({});
      return;
    }
    const ErrorCode code = closing_ ? ErrorCode::kClosed : ErrorCode::kCancelled;
    promise.set_error(std::make_exception_ptr(Error(code, "the pause was ended")));
  });
  // A caller may cancel on any thread, also after the timer has fired: the canceller goes through
  // the loop and does not keep the timer.
  promise.on_cancel([this, weak = std::weak_ptr(timer)] {
    post([weak] {
      if (const auto still = weak.lock()) still->cancel();
    });
  });
  // The destructor has cancelled its timers already and would wait for this one until it is due.
  if (closing_) timer->cancel();
  return future;
}

}  // namespace retort::engines::llamacpp
