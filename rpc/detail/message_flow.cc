#include "rpc/detail/message_flow.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/peer_state.h"

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

std::function<void(uint64_t)> tell_room(const SessionContext& context, FrameType type,
                                        BulkKind kind) {
  return [control = context.control(), type, kind](uint64_t limit) {
    control->send(frame_bytes(type, Room{kind, limit}));
  };
}

}  // namespace

MessageFlow::MessageFlow(SessionContext& context) : context_(context) {
  for (const BulkKind kind : kBulkKinds)
    windows_[static_cast<size_t>(kind)] =
        std::make_unique<SendWindow>(tell_room(context, FrameType::kWant, kind));
}

void MessageFlow::open_accounts() {
  for (const BulkKind kind : kBulkKinds)
    accounts_[static_cast<size_t>(kind)] = context_.host().receive_budget().open(
        static_cast<size_t>(kind), {.grant = tell_room(context_, FrameType::kGrant, kind),
                                    .ask_back = tell_room(context_, FrameType::kAskBack, kind)});
}

void MessageFlow::close() {
  for (const auto& pipe : pipes_)
    if (pipe) pipe->close();
  for (const auto& account : accounts_)
    if (account) account->close();
  for (const auto& window : windows_)
    window->clear();
}

bool MessageFlow::owes_room() const {
  return std::any_of(accounts_.begin(), accounts_.end(),
                     [](const auto& account) { return account && account->asks_back(); });
}

void MessageFlow::on_room(FrameType type, const Room& room) {
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
    context_.send_frame(FrameType::kLowered, Room{kind, limit});
  });
}

// Large messages are read as far as the peer was granted room; their memory is taken afterwards.
void MessageFlow::read(uint32_t index, MessagePipe::OnMessage on_message) {
  if (index == 0) return pipes_[0]->read(kSmallBytes, std::move(on_message));

  const uint64_t largest =
      std::max(context_.host().options().rpc.max_message_bytes.bytes, kMinMessageBytes);
  pipes_[1]->read(
      largest, std::move(on_message),
      [this, self = context_.shared_from_this()](const std::string& metadata, uint64_t bytes) {
        return take_room(kind_of(metadata), bytes);
      });
}

// Returns what a large message holds for as long as it takes memory here, whatever becomes of it.
// Its last holder may run on any thread, so the room is given back on the loop.
std::shared_ptr<void> MessageFlow::take_room(BulkKind kind, uint64_t bytes) {
  const auto account = accounts_[static_cast<size_t>(kind)];
  account->arrive(bytes);
  const auto give_back = [loop = context_.loop(), account, bytes](void*) {
    loop->post([account, bytes] { account->consume(bytes); });
  };
  return {static_cast<void*>(account.get()), give_back};
}

// Small messages have a pipe of their own, which nothing holds up; what they take is bounded by the
// number of calls.
void MessageFlow::write(BulkKind kind, uint64_t call_id, std::shared_ptr<WireMessage> message) {
  const uint64_t bytes = message->size_bytes();
  ++num_writes_;
  if (bytes <= kSmallBytes) return write_to(0, std::move(message));
  message->metadata = metadata_of(kind);
  window(kind).push(call_id, bytes, [this, message] {
    if (message->in_line_since) message->in_line = Clock::now() - *message->in_line_since;
    write_to(1, message);
  });
  // Nobody passes the line, so if any message waits now, this one does, behind all others.
  if (window(kind).num_waiting() > 0) message->in_line_since = Clock::now();
}

void MessageFlow::write_to(uint32_t index, std::shared_ptr<const WireMessage> message) {
  context_.peer_state().count_sent(message->size_bytes());
  pipes_[index]->write(std::move(message), [this, self = context_.shared_from_this()] {
    --num_writes_;
    if (context_.up()) context_.host().session_idle();
  });
}

bool MessageFlow::withdraw(BulkKind kind, uint64_t call_id) {
  if (!window(kind).remove(call_id)) return false;
  --num_writes_;
  return true;
}

}  // namespace retort::rpc::detail
