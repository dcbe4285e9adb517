#include "rpc/detail/control_socket.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "rpc/transport/caught_error.h"

namespace retort::rpc::detail {
namespace {

// The bound has room for the cancellations of a burst of calls; a live peer reads them at once.
constexpr size_t kMaxQueuedFrames = 65536;
using boost::system::error_code;

Error lost(const error_code& code) {
  return Error(ErrorCode::kPeerLost, code == boost::asio::error::eof
                                         ? "the other side closed the control connection"
                                         : "the control connection broke: " + code.message());
}

}  // namespace

ControlSocket::ControlSocket(boost::asio::io_context& io, std::shared_ptr<transport::Stream> stream)
    : io_(io), stream_(std::move(stream)), flush_timer_(io) {}

void ControlSocket::start(OnFrame on_frame, OnError on_error) {
  on_frame_ = std::move(on_frame);
  on_error_ = std::move(on_error);
  read_header();
}

void ControlSocket::read_header() {
  if (closing_ || closed_) return;
  transport::read_all(stream_, boost::asio::buffer(&header_, sizeof header_),
                      [self = shared_from_this()](const error_code& code) {
                        if (code) return self->fail(lost(code));
                        self->read_body(self->header_);
                      });
}

void ControlSocket::read_body(uint32_t length) {
  if (length < 1 || length > kMaxFrameBytes)
    return fail(Error(ErrorCode::kCorrupt, "a control frame has an impossible length")
                    .with("bytes", length)
                    .with("max", kMaxFrameBytes));
  try {
    // There may be no memory for it: that ends this connection, not the process.
    body_.resize(length);
  } catch (...) {
    return fail(transport::caught_error());
  }
  transport::read_all(stream_, boost::asio::buffer(body_),
                      [self = shared_from_this()](const error_code& code) {
                        if (code) return self->fail(lost(code));
                        if (self->closing_ || self->closed_) return;
                        try {
                          self->take_frame();
                        } catch (...) {
                          return self->fail(transport::caught_error());
                        }
                        self->read_header();
                      });
}

void ControlSocket::take_frame() {
  const auto type = static_cast<uint8_t>(body_[0]);
  const std::string body = body_.substr(1);
  if (type > static_cast<uint8_t>(kLastFrameType))
    throw Error(ErrorCode::kCorrupt, "a control frame has an unknown type").with("type", int{type});
  on_frame_(static_cast<FrameType>(type), body);
}

void ControlSocket::send(std::string bytes) {
  if (closing_ || closed_) return;
  // It fails from the queue, because whoever sends may be in the middle of a change.
  if (queue_.size() >= kMaxQueuedFrames)
    return boost::asio::post(io_, [self = shared_from_this()] {
      self->fail(
          Error(ErrorCode::kPeerLost, "the other side does not read its control connection"));
    });
  queue_.push_back(std::move(bytes));
  if (!writing_) write_next();
}

void ControlSocket::write_next() {
  writing_ = true;
  transport::write_all(stream_, boost::asio::buffer(queue_.front()),
                       [self = shared_from_this()](const error_code& code) {
                         self->writing_ = false;
                         if (code) return self->fail(lost(code));
                         self->queue_.pop_front();
                         if (!self->queue_.empty() && !self->closed_) return self->write_next();
                         if (self->closing_) self->close();
                       });
}

void ControlSocket::close_after_flush() {
  if (closing_ || closed_) return;
  closing_ = true;
  if (!writing_) return close();
  // A peer that does not read gets a moment for what is queued, and no more.
  flush_timer_.expires_after(std::chrono::milliseconds(500));
  flush_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code) self->close();
  });
}

void ControlSocket::close() {
  if (closed_) return;
  closed_ = true;
  flush_timer_.cancel();
  stream_->close();
  // The functions hold what uses this object. They may be running now, so they go away from the
  // queue, not from here.
  boost::asio::post(io_, [on_frame = std::move(on_frame_), on_error = std::move(on_error_)] {});
  on_frame_ = nullptr;
  on_error_ = nullptr;
}

void ControlSocket::fail(const Error& error) {
  if (closed_) return;
  const OnError report = closing_ ? nullptr : on_error_;
  close();
  if (report) report(error);
}

}  // namespace retort::rpc::detail
