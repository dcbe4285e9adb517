#include "tests/rpc/simulation/memory_stream.h"

#include <boost/asio/error.hpp>
#include <cstring>
#include <utility>

#include "base/future.h"
#include "rpc/detail/frames.h"

namespace retort::rpc::simulation {

using boost::system::error_code;

void MemoryStream::join(const std::shared_ptr<MemoryStream>& one,
                        const std::shared_ptr<MemoryStream>& other) {
  one->peer_ = other;
  other->peer_ = one;
}

void MemoryStream::start(Handler handler) {
  host().post([handler = std::move(handler)] { handler({}); });
}

void MemoryStream::read_some(transport::MutableBuffers to, TransferHandler handler) {
  to_ = to.front();
  reader_ = std::move(handler);
  if (closed_) return end_reader(boost::asio::error::operation_aborted);
  answer_reader();
}

// Takes a part, as a socket does.
void MemoryStream::write_some(transport::ConstBuffers from, TransferHandler handler) {
  const auto& buffer = from.front();
  if (closed_ || at_end_)
    return host().post([handler = std::move(handler), aborted = closed_] {
      handler(aborted ? error_code(boost::asio::error::operation_aborted)
                      : error_code(boost::asio::error::connection_reset),
              0);
    });
  static const std::string kHeartbeat =
      rpc::detail::frame_bytes(rpc::detail::FrameType::kHeartbeat, Empty{});
  const std::string_view sent(static_cast<const char*>(buffer.data()), buffer.size());
  Scheduler& scheduler = host().network().scheduler();
  if (!up && sent == kHeartbeat) {
    // Until now it may have waited for its data connections, for longer than it may be deaf.
    up = true;
    if (deaf_since) deaf_since = scheduler.now();
  }
  if (sent == kHeartbeat) host().network().count_heartbeat(host());
  const size_t bytes = scheduler.one_of(8) ? 1 + scheduler.pick(buffer.size()) : buffer.size();
  host().network().traffic().control_bytes += bytes;
  send({.bytes = std::string(sent.substr(0, bytes))});
  host().post([handler = std::move(handler), bytes] { handler({}, bytes); });
}

void MemoryStream::send(Piece piece) {
  if (muted_) return;
  Scheduler& scheduler = host().network().scheduler();
  const auto soonest =
      scheduler.now() + milliseconds(1) + scheduler.up_to(host().network().options().latency_ms);
  last_arrival_ = std::max(last_arrival_, soonest);
  under_way_.push_back(std::move(piece));
  // The far end must not be kept alive by what is on its way to it, nor this one.
  scheduler.after(std::chrono::duration_cast<milliseconds>(last_arrival_ - scheduler.now()),
                  [self = shared_from_this()] {
                    if (self->under_way_.empty()) return;
                    Piece first = std::move(self->under_way_.front());
                    self->under_way_.pop_front();
                    const auto peer = self->peer_.lock();
                    if (peer && !self->muted_) peer->arrive(std::move(first));
                  });
}

void MemoryStream::arrive(Piece piece) {
  if (closed_) return;
  arrived_ += piece.bytes;
  at_end_ = at_end_ || piece.end;
  answer_reader();
}

void MemoryStream::answer_reader() {
  if (!reader_) return;
  if (arrived_.empty()) {
    if (at_end_) end_reader(boost::asio::error::eof);
    return;
  }
  const size_t bytes = std::min(arrived_.size(), to_.size());
  std::memcpy(to_.data(), arrived_.data(), bytes);
  arrived_.erase(0, bytes);
  host().post([self = shared_from_this(), reader = std::exchange(reader_, nullptr), bytes] {
    reader(self->closed_ ? error_code(boost::asio::error::operation_aborted) : error_code(), bytes);
  });
}

void MemoryStream::end_reader(const error_code& code) {
  if (!reader_) return;
  host().post([reader = std::exchange(reader_, nullptr), code] { reader(code, 0); });
}

void MemoryStream::close() {
  if (closed_) return;
  closed_ = true;
  end_reader(boost::asio::error::operation_aborted);
  send({.end = true});
}

void MemoryStream::reset() {
  if (closed_) return;
  at_end_ = true;
  arrived_.clear();
  muted_ = true;
  answer_reader();
}

}  // namespace retort::rpc::simulation
