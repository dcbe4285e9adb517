#include "rpc/detail/session.h"

#include <string>
#include <utility>
#include <vector>

#include "base/future.h"
#include "base/log.h"
#include "base/process_name.h"
#include "base/units.h"
#include "rpc/agent.h"
#include "rpc/archive.h"
#include "rpc/detail/device_numbering.h"
#include "rpc/detail/device_transfer.h"
#include "rpc/detail/envelope.h"
#include "rpc/transport/caught_error.h"

namespace retort::rpc::detail {
namespace {

constexpr std::chrono::seconds kSetupTimeout{15};
using Clock = std::chrono::steady_clock;

}  // namespace

Session::Session(SessionHost& host, std::shared_ptr<transport::Stream> stream,
                 transport::Proven proven, std::optional<PeerAddress> dialed)
    : SessionContext(host, std::move(stream), std::move(proven)),
      dialed_(std::move(dialed)),
      timer_(loop()->io()),
      setup_(*this, [this](Pipes pipes) { go_up(std::move(pipes)); }),
      flow_(*this),
      goodbye_(*this),
      outgoing_(*this, flow_, goodbye_),
      incoming_(*this, flow_) {}

// Set-up: both sides say Ready, the client connects two pipes. The control connection was proved
// before; the data connections are, each by itself, before a pipe sees them.

void Session::start() {
  auto self = shared_from_this();
  timer_.expires_after(kSetupTimeout);
  timer_.async_wait([self](const boost::system::error_code& code) {
    if (!code && self->phase() < Phase::kUp)
      self->fail(Error(ErrorCode::kTimeout, "the data connections were not set up in time"));
  });

  // The data plane knows the session, and a server listens, before Ready is sent: a client dials as
  // soon as it has the answer.
  host().data().open(proven(), dialed_);
  if (!dialed_) setup_.listen();
  control()->start([self](FrameType type, std::string_view body) { self->on_frame(type, body); },
                   [self](const Error& error) { self->fail(error); });
  if (dialed_) say_ready();
}

void Session::say_ready() {
  const Agent::Options& options = host().options();
  std::vector<std::string> devices;
  if (options.devices) devices = options.devices->device_ids();
  send_frame(FrameType::kReady,
             Ready{.incarnation = host().incarnation(),
                   .restart = options.restart,
                   .max_message_bytes = options.rpc.max_message_bytes.bytes,
                   .max_inflight_calls = static_cast<uint64_t>(options.rpc.max_inflight_calls),
                   .devices = std::move(devices)});
}

// Both ends look, each at its own map, before a tensor can go to a device that nobody meant.
void Session::check_devices() const {
  const Agent::Options& options = host().options();
  const auto map = options.rpc.device_maps.find(role_of(peer()));
  if (map == options.rpc.device_maps.end() || !options.devices) return;
  // A peer without devices may be one whose role turns out to need none. It is refused when a
  // tensor is to go to a device of its (address()), and the log has said why.
  if (theirs().devices.empty()) {
    RETORT_LOG(kWarning) << "rpc.device_maps." << map->first << ": " << peer()
                         << " sees no devices (its role computes on the CPU, or its module for "
                            "them is not loaded), so that no tensor can go to one";
    return;
  }
  const SeenDevices here{.process = options.name, .ids = options.devices->device_ids()};
  const SeenDevices there{.process = peer(), .ids = theirs().devices};
  check_numbering(map->second, here, there);
  RETORT_LOG(kInfo) << "rpc.device_maps." << map->first << ": "
                    << map_text(map->second, here, there);
}

// The server answers when it knows the client, and it listens by then; so the client dials as soon
// as it has the answer. What a side grants comes after its Ready.
void Session::on_ready(std::string_view body) {
  set_theirs(parse_ready(body));
  host().admit(peer(), theirs().restart);
  check_devices();
  enter(Phase::kPipes);
  if (!dialed_) say_ready();
  flow_.open_accounts();
  if (dialed_) setup_.connect();
}

void Session::go_up(Pipes pipes) {
  flow_.open(std::move(pipes));
  enter(Phase::kUp);
  set_peer_state(host().peer_state(peer()));
  peer_state().set_sees_devices(!theirs().devices.empty());
  peer_state().set_limits(theirs().max_message_bytes, theirs().max_inflight_calls);
  last_heard_ = last_tick_ = Clock::now();
  tick();
  host().session_up(shared_from_this());
  if (const auto settled = std::exchange(on_settled_, nullptr)) settled(nullptr);
  read_pipe(0);
  read_pipe(1);
}

// Frames of the control connection.

void Session::on_frame(FrameType type, std::string_view body) {
  if (dead()) return;
  last_heard_ = Clock::now();
  try {
    if (phase() > Phase::kIntroduction) return on_control(type, body);
    if (type == FrameType::kBye) return goodbye_.on_farewell(body, !outgoing_.empty());
    if (type == FrameType::kReady) return on_ready(body);
    throw Error(ErrorCode::kCorrupt, "a control frame came out of order")
        .with("type", static_cast<int>(type));
  } catch (...) {
    refuse(transport::caught_error());
  }
}

void Session::on_control(FrameType type, std::string_view body) {
  switch (type) {
    case FrameType::kHeartbeat: return;
    case FrameType::kCancel: return incoming_.on_cancel(from_bytes<Cancel>(body).call_id);
    case FrameType::kBye: return goodbye_.on_farewell(body, !outgoing_.empty());
    case FrameType::kByeAck:
      if (goodbye_.on_acknowledged()) return;
      break;
    case FrameType::kGrant:
    case FrameType::kWant:
    case FrameType::kAskBack:
    case FrameType::kLowered: return flow_.on_room(type, from_bytes<Room>(body));
    case FrameType::kAsk: return incoming_.on_ask(from_bytes<Ask>(body).call_id);
    case FrameType::kStanding: return outgoing_.on_standing(from_bytes<Standing>(body));
    case FrameType::kReady: break;
  }
  throw Error(ErrorCode::kCorrupt, "a control frame came out of order")
      .with("type", static_cast<int>(type));
}

void Session::tick() {
  const auto interval = host().options().rpc.heartbeats();
  const auto timeout = host().options().rpc.peer_timeout;
  const auto now = Clock::now();
  // A tick that is very late means that this process was stopped; then the silence is ours.
  if (now - last_tick_ > timeout) last_heard_ = now;
  last_tick_ = now;
  if (now - last_heard_ > timeout)
    return fail(Error(ErrorCode::kPeerLost, "no heartbeat for rpc.peer_timeout")
                    .with("timeout", format_duration(timeout)));
  // A peer that is alive but never gives back room would hold the budget of all others for ever.
  owed_ticks_ = flow_.owes_room() ? owed_ticks_ + 1 : 0;
  if (owed_ticks_ * interval > timeout)
    return fail(Error(ErrorCode::kPeerLost, "the peer does not give back room for rpc.peer_timeout")
                    .with("timeout", format_duration(timeout)));
  send_frame(FrameType::kHeartbeat, Empty{});
  timer_.expires_after(interval);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (!code && self->up()) self->tick();
  });
}

// Messages of the two pipes.

void Session::read_pipe(uint32_t index) {
  if (!up()) return;
  flow_.read(index, [self = shared_from_this(), index](WireMessage message) {
    if (!self->up()) return;
    self->on_message(std::move(message));
    self->read_pipe(index);
  });
}

void Session::on_message(WireMessage message) {
  const uint64_t bytes = message.size_bytes();
  peer_state().count_received(bytes);
  // A request keeps the room for as long as it takes memory; that of a reply is given back here.
  const auto room = std::exchange(message.credit, nullptr);
  try {
    std::string_view body;
    const Envelope envelope = split_payload(message.payload, body);
    if (envelope.kind == MessageKind::kRequest)
      return incoming_.on_request(envelope, Message{std::string(body), std::move(message.tensors)},
                                  room, bytes);
    outgoing_.on_reply(envelope, Message{std::string(body), std::move(message.tensors)}, bytes);
  } catch (...) {
    return refuse(transport::caught_error());
  }
  if (!up()) return;
  goodbye_.acknowledge_unless(!outgoing_.empty());
  if (up()) host().session_idle();
}

void Session::send(const std::shared_ptr<OutgoingCall>& call) {
  if (!takes_calls())
    return call->fail(lost_error(Error(ErrorCode::kPeerLost, "the peer is gone")));
  outgoing_.send(call);
}

// The end.

void Session::cancel_all(const Error& error) {
  incoming_.drop_all();
  outgoing_.cancel_all(error);
}

Error Session::lost_error(const Error& reason) const {
  const auto code = reason.code() == ErrorCode::kClosed ? ErrorCode::kClosed : ErrorCode::kPeerLost;
  return Error(code, reason.message(), reason.origin(), reason.context()).with("peer", peer());
}

void Session::fail(const Error& reason) {
  if (dead()) return;

  // From here on nothing is sent or received.
  const auto self = shared_from_this();
  enter(Phase::kDead);
  timer_.cancel();
  outgoing_.stop_looks();
  goodbye_.stop();
  control()->close_after_flush();
  host().data().end(proven().session);
  setup_.close();
  flow_.close();

  incoming_.drop_all();
  // The calls are taken out first, because a completion may call back into this session.
  const auto calls = outgoing_.take_all();

  // First the agent forgets this session, so that what a completion starts meets the new state of
  // things.
  host().session_down(self, reason);
  if (const auto settled = std::exchange(on_settled_, nullptr)) settled(&reason);
  for (const auto& [id, call] : calls)
    call->fail(lost_error(reason));
}

}  // namespace retort::rpc::detail
