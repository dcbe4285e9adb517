// Decodes: a control connection (rpc/detail/control_socket.h): frames in pieces of the size that
//   the first byte says, their bodies as Session reads them, and what Grant, Want, AskBack and
//   Lowered do to both ends of flow control. The body of a heartbeat, which Session ignores, says
//   here what this side does meanwhile: sends, and takes or frees a message of the peer.
// Holds: nobody sends more than it was granted; what all were granted and have not consumed stays
//   within the budget and one message of each kind.
#include "rpc/detail/control_socket.h"

#include <deque>

#include "base/future.h"
#include "rpc/flow/receive_budget.h"
#include "rpc/flow/send_window.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/memory_stream.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::control_frames {
namespace {

using namespace rpc::detail;

constexpr uint64_t kTotal = 1 << 20, kWindow = 1 << 16, kLargest = 1 << 19;

// Both ends of the flow of one kind of message.
class Flow {
 public:
  Flow(ReceiveBudget& budget, size_t kind)
      : window_([](uint64_t) {}),
        account_(budget.open(kind, {.grant = [](uint64_t) {}, .ask_back = [](uint64_t) {}})) {}
  ~Flow() { account_->close(); }
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  void on_room(FrameType type, uint64_t limit) {
    if (type == FrameType::kWant) return account_->want(limit);
    if (type == FrameType::kLowered) return account_->lowered(limit);
    if (type == FrameType::kAskBack)
      return window_.lower(limit, [&](uint64_t left) { granted_ = left; });
    granted_ = limit;
    window_.raise(limit);
  }

  void act(ByteSource& choices) {
    const uint8_t choice = choices.byte();
    const auto bytes = choices.number<uint32_t>() % (2 * kLargest);
    if (choice % 4 == 0) window_.push(next_id_++, bytes, [this, bytes] { sent_ += bytes; });
    if (choice % 4 == 1) window_.remove(choices.byte());
    if (choice % 4 == 2) arrive(bytes);
    if (choice % 4 == 3) consume();
    expect(sent_ <= granted_, "more was sent than was granted");
  }

 private:
  void arrive(uint64_t bytes) {
    account_->arrive(bytes);
    arrived_.push_back(bytes);
  }
  void consume() {
    if (arrived_.empty()) return;
    account_->consume(arrived_.front());
    arrived_.pop_front();
  }

  SendWindow window_;
  const std::shared_ptr<ReceiveAccount> account_;
  std::deque<uint64_t> arrived_;
  uint64_t next_id_ = 0, sent_ = 0, granted_ = 0;
};

class Peer {
 public:
  void on_frame(FrameType type, std::string_view body) {
    switch (type) {
      case FrameType::kReady: parse_ready(body); break;
      case FrameType::kCancel: rpc::from_bytes<Cancel>(body); break;
      case FrameType::kAsk: rpc::from_bytes<Ask>(body); break;
      case FrameType::kStanding: rpc::from_bytes<Standing>(body); break;
      case FrameType::kBye: checked_code(rpc::from_bytes<Farewell>(body).code); break;
      case FrameType::kByeAck: break;
      case FrameType::kHeartbeat: act(body); break;
      case FrameType::kGrant:
      case FrameType::kWant:
      case FrameType::kAskBack:
      case FrameType::kLowered: {
        const auto room = rpc::from_bytes<Room>(body);
        flows_.at(static_cast<size_t>(room.kind)).on_room(type, room.limit);
      }
    }
    expect(budget_.promised_bytes() <= kTotal + kNumBulkKinds * (kLargest + kWindow),
           "more was granted than the budget holds");
    ++frames;
  }

  size_t frames = 0;
  std::optional<Error> end;

 private:
  void act(std::string_view body) {
    for (ByteSource choices(body); !choices.empty();)
      flows_.at(choices.byte() % flows_.size()).act(choices);
  }

  ReceiveBudget budget_{kTotal, kWindow, kLargest};
  std::array<Flow, kNumBulkKinds> flows_{Flow{budget_, 0}, Flow{budget_, 1}};
};

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const size_t piece = source.byte() + 1;
  boost::asio::io_context io;
  const auto stream = std::make_shared<MemoryStream>(io, source.rest(), piece);
  Peer peer;
  const auto socket = std::make_shared<ControlSocket>(io, stream);
  socket->start([&](FrameType type, std::string_view body) { peer.on_frame(type, body); },
                [&](const Error& error) { peer.end = error; });
  io.run();

  expect(peer.end.has_value(), "a connection ended without an error");
  return peer.frames > 0 && peer.end->code() == ErrorCode::kPeerLost;
}

std::vector<Seed> seeds() {
  const auto room = [](FrameType type, uint64_t limit, BulkKind kind = BulkKind::kRequests) {
    return frame_bytes(type, Room{kind, limit});
  };
  // A heartbeat with a script in it.
  const auto acts = [](const std::string& script) {
    const auto length = static_cast<uint32_t>(script.size() + 1);
    return ByteSink()
        .number(length)
        .byte(static_cast<uint8_t>(FrameType::kHeartbeat))
        .raw(script)
        .bytes();
  };
  const auto push = [](uint32_t size) { return ByteSink().byte(0).byte(0).number(size).bytes(); };
  const auto arrive = [](uint32_t size) { return ByteSink().byte(0).byte(2).number(size).bytes(); };
  const auto consume = ByteSink().byte(0).byte(3).number(uint32_t{0}).bytes();

  const std::string begin = ByteSink().byte(6).bytes();
  const std::string end =
      frame_bytes(FrameType::kAsk, Ask{7}) +
      frame_bytes(FrameType::kStanding, Standing{7, CallStage::kRunning, 3}) +
      frame_bytes(FrameType::kCancel, Cancel{7}) +
      frame_bytes(FrameType::kBye, Farewell{static_cast<uint8_t>(ErrorCode::kClosed), "closed"}) +
      frame_bytes(FrameType::kByeAck, retort::Empty{});
  return {
      {"frames", begin +
                     frame_bytes(FrameType::kReady, Ready{.incarnation = "incarnation",
                                                          .max_message_bytes = 1 << 20,
                                                          .max_inflight_calls = 8}) +
                     frame_bytes(FrameType::kHeartbeat, retort::Empty{}) + end},
      {"sends", begin + acts(push(1000) + push(2000)) + room(FrameType::kGrant, 1500) +
                    room(FrameType::kAskBack, 1000) + room(FrameType::kGrant, 9000)},
      {"receives", begin + room(FrameType::kWant, 200'000) + acts(arrive(150'000) + consume) +
                       room(FrameType::kWant, 90'000, BulkKind::kReplies) + acts(arrive(10))},
  };
}

}  // namespace

Target target() { return {"control_frames", decode, seeds}; }

}  // namespace retort::fuzz::control_frames
