// The part of Session that moves messages: which pipe, and when the peer has room for it.
#include <algorithm>
#include <utility>

#include "rpc/detail/session.h"

namespace retort::rpc::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<BulkKind, kNumBulkKinds> kBulkKinds{BulkKind::kRequests, BulkKind::kReplies};

std::string metadata_of(BulkKind kind) { return std::string(1, static_cast<char>(kind)); }

BulkKind kind_of(const std::string& metadata) {
  for (const BulkKind kind : kBulkKinds)
    if (metadata == metadata_of(kind)) return kind;
  throw Error(ErrorCode::kCorrupt, "a large message is neither a request nor a reply");
}

}  // namespace

std::function<void(uint64_t)> Session::tell_room(FrameType type, BulkKind kind) const {
  return [control = control_, type, kind](uint64_t limit) {
    control->send(frame_bytes(type, Room{kind, limit}));
  };
}

void Session::open_windows() {
  for (const BulkKind kind : kBulkKinds)
    windows_[static_cast<size_t>(kind)] =
        std::make_unique<SendWindow>(tell_room(FrameType::kWant, kind));
}

void Session::open_accounts() {
  for (const BulkKind kind : kBulkKinds)
    accounts_[static_cast<size_t>(kind)] = host_.receive_budget().open(
        static_cast<size_t>(kind), {.grant = tell_room(FrameType::kGrant, kind),
                                    .ask_back = tell_room(FrameType::kAskBack, kind)});
}

// An answer that needs nothing but the control connection.
bool Session::owes_room() const {
  return std::any_of(accounts_.begin(), accounts_.end(),
                     [](const auto& account) { return account && account->asks_back(); });
}

void Session::on_room(FrameType type, const Room& room) {
  if (static_cast<size_t>(room.kind) >= kNumBulkKinds)
    throw Error(ErrorCode::kCorrupt, "room for an unknown kind of message")
        .with("kind", static_cast<int>(room.kind));
  switch (type) {
    case FrameType::kGrant: return window(room.kind).raise(room.limit);
    case FrameType::kWant: return account(room.kind).want(room.limit);
    case FrameType::kLowered: return account(room.kind).lowered(room.limit);
    default: break;
  }
  window(room.kind).lower(room.limit, [this, kind = room.kind](uint64_t limit) {
    control_->send(frame_bytes(FrameType::kLowered, Room{kind, limit}));
  });
}

// Large messages are read as far as the peer was granted room; their memory is taken afterwards.
void Session::read_pipe(uint32_t index) {
  if (phase_ != Phase::kUp) return;
  auto on_message = [self = shared_from_this(), index](WireMessage message) {
    if (self->phase_ != Phase::kUp) return;
    self->on_message(std::move(message));
    self->read_pipe(index);
  };
  if (index == 0) return pipes_[0]->read(kSmallBytes, std::move(on_message));

  const uint64_t largest = std::max(host_.options().rpc.max_message_bytes.bytes, kMinMessageBytes);
  pipes_[1]->read(largest, std::move(on_message),
                  [self = shared_from_this()](const std::string& metadata, uint64_t bytes) {
                    return self->take_room(kind_of(metadata), bytes);
                  });
}

// Held for as long as a large message takes memory here, whatever becomes of it.
std::shared_ptr<void> Session::take_room(BulkKind kind, uint64_t bytes) {
  const auto account = accounts_[static_cast<size_t>(kind)];
  account->arrive(bytes);
  const auto give_back = [loop = loop_, account, bytes](void*) {
    loop->post([account, bytes] { account->consume(bytes); });
  };
  return {static_cast<void*>(account.get()), give_back};
}

// Small messages have a pipe of their own, which nothing holds up; what they take is bounded by the
// number of calls.
void Session::write(BulkKind kind, uint64_t call_id, std::shared_ptr<WireMessage> message) {
  const uint64_t bytes = message->size_bytes();
  ++writes_;
  if (bytes <= kSmallBytes) return write_to(0, std::move(message));
  message->metadata = metadata_of(kind);
  window(kind).push(call_id, bytes, [this, message] {
    if (message->in_line_since) message->in_line = Clock::now() - *message->in_line_since;
    write_to(1, message);
  });
  // If anyone waits now it is this one, behind all others.
  if (window(kind).num_waiting() > 0) message->in_line_since = Clock::now();
}

void Session::write_to(uint32_t index, std::shared_ptr<const WireMessage> message) {
  state_->count_sent(message->size_bytes());
  pipes_[index]->write(std::move(message), [self = shared_from_this()] {
    --self->writes_;
    if (self->phase_ == Phase::kUp) self->host_.session_idle();
  });
}

}  // namespace retort::rpc::detail
