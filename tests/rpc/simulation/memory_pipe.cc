#include "tests/rpc/simulation/memory_pipe.h"

#include <tensorpipe/tensorpipe.h>

#include <cstring>
#include <utility>

#include "rpc/detail/data_pipe.h"

namespace retort::rpc::simulation {

using rpc::detail::WireMessage;

namespace {

constexpr uint64_t kMaxIdleBytes = 8 << 20;

// What the other end hears first of a message.
tensorpipe::Descriptor announced(const WireMessage& message) {
  const tensorpipe::Message sent = rpc::detail::to_tensorpipe(message, nullptr);
  tensorpipe::Descriptor descriptor;
  descriptor.metadata = sent.metadata;
  for (const auto& payload : sent.payloads)
    descriptor.payloads.push_back({payload.length, payload.metadata});
  for (const auto& tensor : sent.tensors) {
    tensorpipe::Descriptor::Tensor entry;
    entry.length = tensor.length;
    entry.sourceDevice = tensorpipe::Device(tensorpipe::kCpuDeviceType, 0);
    entry.metadata = tensor.metadata;
    descriptor.tensors.push_back(std::move(entry));
  }
  return descriptor;
}

std::shared_ptr<rpc::detail::ReceivePool> shared_pool() {
  static const auto pool = std::make_shared<rpc::detail::ReceivePool>(kMaxIdleBytes);
  return pool;
}

Error broken() { return Error(ErrorCode::kPeerLost, "the data connection broke"); }

}  // namespace

MemoryPipe::MemoryPipe(std::shared_ptr<Host> host) : End(std::move(host)), pool_(shared_pool()) {}

void MemoryPipe::join(const std::shared_ptr<MemoryPipe>& one,
                      const std::shared_ptr<MemoryPipe>& other) {
  one->peer_ = other;
  other->peer_ = one;
}

void MemoryPipe::read(uint64_t max_bytes, OnMessage on_message, Admit admit) {
  if (closed_) return;
  read_ = Read{max_bytes, std::move(on_message), std::move(admit)};
  take();
}

void MemoryPipe::write(std::shared_ptr<const WireMessage> message,
                       std::function<void()> on_written) {
  if (closed_) return on_written();
  unsent_.push_back({std::move(message), std::move(on_written)});
  send_next();
}

// One message after the other is on its way; it takes as long as its bytes do.
void MemoryPipe::send_next() {
  if (sending_ || unsent_.empty() || muted_) return;
  sending_ = true;
  const auto& options = host().network().options();
  const uint64_t bytes = unsent_.front().message->size_bytes();
  const milliseconds wire = host().network().wire_time(host(), bytes);
  host().network().traffic().data_bytes += bytes;
  ++host().network().traffic().data_messages;
  Scheduler& scheduler = host().network().scheduler();
  scheduler.after(wire + milliseconds(1) + scheduler.up_to(options.latency_ms),
                  [self = shared_from_this()] { self->arrive(); });
}

void MemoryPipe::arrive() {
  sending_ = false;
  if (closed_ || muted_ || unsent_.empty()) return;
  unread_.push_back(std::move(unsent_.front()));
  unsent_.pop_front();
  if (const auto peer = peer_.lock()) peer->take();
  send_next();
}

// On this end's loop, when there is a message and somebody reads.
void MemoryPipe::take() {
  const auto peer = peer_.lock();
  if (closed_ || taking_ || !read_) return;
  if (peer && !peer->unread_.empty()) {
    taking_ = true;
    host().post([self = shared_from_this(), peer] {
      self->taking_ = false;
      if (self->closed_ || peer->unread_.empty()) return;
      const auto message = peer->unread_.front().message;
      const Read read = *std::exchange(self->read_, std::nullopt);
      self->receive(*message, read);
      peer->taken();
    });
  } else if (peer_gone_) {
    host().post([self = shared_from_this()] { self->fail(broken()); });
  }
}

// What production code does with a descriptor and the bytes behind it.
void MemoryPipe::receive(const WireMessage& sent, const Read& read) {
  std::shared_ptr<WireMessage> message;
  try {
    const tensorpipe::Descriptor descriptor = announced(sent);
    const uint64_t bytes = rpc::detail::announced_bytes(descriptor, read.max_bytes);
    std::shared_ptr<void> room;
    if (read.admit)
      room = read.admit(descriptor.metadata, bytes);
    else if (!descriptor.metadata.empty())
      throw Error(ErrorCode::kCorrupt, "a small message has another form than ours");
    tensorpipe::Allocation allocation;
    message = rpc::detail::allocate(descriptor, read.max_bytes, *pool_, allocation);
    message->credit = std::move(room);
  } catch (const Error& error) {
    return fail(error);
  }
  message->payload = sent.payload;
  for (size_t i = 0; i < sent.tensors.size(); ++i)
    if (sent.tensors[i].nbytes() > 0)
      std::memcpy(message->tensors[i].mutable_data_ptr(), sent.tensors[i].const_data_ptr(),
                  sent.tensors[i].nbytes());
  read.on_message(std::move(*message));
}

// The other end has the first message that was there.
void MemoryPipe::taken() {
  if (unread_.empty()) return;
  const Sent sent = std::move(unread_.front());
  unread_.pop_front();
  host().post([sent] { sent.on_written(); });
  if (const auto peer = peer_.lock()) peer->take();
}

void MemoryPipe::close() {
  if (closed_) return;
  closed_ = true;
  const auto free = [this](std::deque<Sent>& messages) {
    for (const Sent& sent : messages)
      host().post([sent] { sent.on_written(); });
    messages.clear();
  };
  free(unsent_);
  free(unread_);
  read_.reset();
  host().post([on_error = std::move(on_error_)] {});
  on_error_ = nullptr;

  if (muted_) return;
  Scheduler& scheduler = host().network().scheduler();
  scheduler.after(milliseconds(1) + scheduler.up_to(host().network().options().latency_ms),
                  [peer = peer_] {
                    if (const auto other = peer.lock()) other->reset();
                  });
}

void MemoryPipe::reset() {
  if (closed_) return;
  peer_gone_ = true;
  host().post([self = shared_from_this()] { self->fail(broken()); });
}

void MemoryPipe::fail(const Error& error) {
  if (closed_) return;
  const OnError report = on_error_;
  close();
  if (report) report(error);
}

}  // namespace retort::rpc::simulation
