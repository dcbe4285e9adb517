#include "rpc/launcher_port/frame_connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "rpc/transport/caught_error.h"

namespace retort::rpc::launcher_port {
namespace {

using boost::system::error_code;

// Whoever reads "timed out" takes it for a wait that came to its end: not so here.
Error broken_connection(const error_code& code) {
  if (code == boost::asio::error::eof)
    return Error(ErrorCode::kPeerLost, "the other side closed the connection");
  if (code == boost::asio::error::timed_out)
    return Error(ErrorCode::kPeerLost, "the other side's host does not answer any more");
  return Error(ErrorCode::kPeerLost, "the connection broke: " + code.message());
}

}  // namespace

std::string with_length(std::string_view content) {
  const auto length = static_cast<uint32_t>(content.size());
  RETORT_CHECK(length == content.size()) << "a frame of " << content.size() << " bytes";
  std::string frame(reinterpret_cast<const char*>(&length), sizeof length);
  return frame.append(content);
}

FrameConnection::FrameConnection(boost::asio::io_context& io,
                                 std::shared_ptr<transport::Stream> stream,
                                 const FrameLimits& limits)
    : io_(io), stream_(std::move(stream)), limits_(limits) {}

void FrameConnection::start(OnFrame on_frame, OnEnd on_end) {
  on_frame_ = std::move(on_frame);
  on_end_ = std::move(on_end);
  read_length();
}

void FrameConnection::read_length() {
  transport::read_all(stream_, boost::asio::buffer(&length_, sizeof length_),
                      [self = shared_from_this()](const error_code& code) {
                        if (self->closed_) return;
                        if (code) return self->end(broken_connection(code));
                        self->read_content();
                      });
}

void FrameConnection::read_content() {
  if (length_ == 0 || length_ > limits_.max_frame_bytes)
    return end(Error(ErrorCode::kCorrupt, "a frame has an impossible length")
                   .with("bytes", length_)
                   .with("max", limits_.max_frame_bytes));

  try {
    // There may be no memory for it: that ends this connection, not the process.
    content_.resize(length_);
  } catch (...) {
    return end(transport::caught_error());
  }
  transport::read_all(stream_, boost::asio::buffer(content_),
                      [self = shared_from_this()](const error_code& code) {
                        if (self->closed_) return;
                        if (code) return self->end(broken_connection(code));
                        self->on_content();
                      });
}

void FrameConnection::on_content() {
  try {
    on_frame_(content_);
  } catch (...) {
    return end(transport::caught_error());
  }
  if (closed_) return;

  // A large frame was the exception: its memory does not stay for as long as the connection.
  content_ = std::string();
  read_length();
}

void FrameConnection::send(std::string frame) {
  if (closed_) return;
  unsent_bytes_ += frame.size();
  if (unsent_bytes_ > limits_.max_unsent_bytes) {
    // Later, because the caller may be in the middle of what on_end would change.
    boost::asio::post(io_, [self = shared_from_this()] {
      self->end(Error(ErrorCode::kPeerLost, "the other side does not read its connection"));
    });
    return;
  }
  unsent_.push_back(std::move(frame));
  if (!writing_) write_next();
}

void FrameConnection::write_next() {
  writing_ = true;
  transport::write_all(stream_, boost::asio::buffer(unsent_.front()),
                       [self = shared_from_this()](const error_code& code) {
                         self->writing_ = false;
                         if (self->closed_) return;
                         if (code) return self->end(broken_connection(code));
                         self->unsent_bytes_ -= self->unsent_.front().size();
                         self->unsent_.pop_front();
                         if (!self->unsent_.empty()) self->write_next();
                       });
}

void FrameConnection::close() {
  if (std::exchange(closed_, true)) return;
  stream_->close();
}

void FrameConnection::end(const Error& error) {
  if (closed_) return;
  close();
  on_end_(error);
}

}  // namespace retort::rpc::launcher_port
