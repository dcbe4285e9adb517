// The part of Session that runs before the first call: both sides say Ready, the client connects
// two pipes. The control connection was proved before; the data connections are, each by itself,
// before a pipe sees them.
#include "rpc/detail/session.h"
#include "rpc/transport/caught_error.h"

namespace retort::rpc::detail {
namespace {

constexpr std::chrono::seconds kSetupTimeout{15};

std::shared_ptr<const WireMessage> pipe_hello(uint32_t index) {
  auto message = std::make_shared<WireMessage>();
  message->payload = to_bytes(PipeHello{index});
  return message;
}

}  // namespace

Session::Session(SessionHost& host, std::shared_ptr<transport::Stream> stream,
                 transport::Proven proven, std::optional<PeerAddress> dialed)
    : host_(host),
      loop_(host.loop()),
      proven_(std::move(proven)),
      dialed_(std::move(dialed)),
      control_(std::make_shared<ControlSocket>(loop_->io(), std::move(stream))),
      timer_(loop_->io()),
      look_timer_(loop_->io()),
      goodbye_timer_(loop_->io()) {}

void Session::start() {
  auto self = shared_from_this();
  timer_.expires_after(kSetupTimeout);
  timer_.async_wait([self](const boost::system::error_code& code) {
    if (!code && self->phase_ < Phase::kUp)
      self->fail(Error(ErrorCode::kTimeout, "the data connections were not set up in time"));
  });

  host_.data().open(proven_, dialed_);
  open_windows();
  if (!dialed_) listen_for_pipes();
  control_->start([self](FrameType type, std::string_view body) { self->on_frame(type, body); },
                  [self](const Error& error) { self->fail(error); });
  if (dialed_) say_ready();
}

void Session::say_ready() {
  control_->send(frame_bytes(FrameType::kReady,
                             Ready{host_.incarnation(), host_.options().restart,
                                   host_.options().rpc.max_message_bytes.bytes,
                                   static_cast<uint64_t>(host_.options().rpc.max_inflight_calls)}));
}

void Session::on_frame(FrameType type, std::string_view body) {
  if (phase_ == Phase::kDead) return;
  last_heard_ = std::chrono::steady_clock::now();
  try {
    if (phase_ > Phase::kIntroduction) return on_control(type, body);
    if (type == FrameType::kBye) return on_farewell(body);
    if (type == FrameType::kReady) return on_ready(body);
    throw Error(ErrorCode::kCorrupt, "a control frame came out of order")
        .with("type", static_cast<int>(type));
  } catch (...) {
    refuse(transport::caught_error());
  }
}

// The server answers when it knows the client, and it listens by then; so the client dials as soon
// as it has the answer. What a side grants comes after its Ready.
void Session::on_ready(std::string_view body) {
  theirs_ = parse_ready(body);
  host_.admit(peer(), theirs_.restart);
  phase_ = Phase::kPipes;
  if (!dialed_) say_ready();
  open_accounts();
  if (dialed_) connect_pipes();
}

// Tells the peer why, then ends.
void Session::refuse(const Error& error) {
  if (phase_ == Phase::kDead) return;
  control_->send(frame_bytes(FrameType::kBye, Farewell{static_cast<uint8_t>(error.code()),
                                                       error.message().substr(0, 1024)}));
  fail(error);
}

void Session::listen_for_pipes() {
  listener_ =
      host_.data().listen(proven_.session, pipes_.size(),
                          [self = shared_from_this()](const std::optional<Error>& error,
                                                      const std::shared_ptr<MessagePipe>& pipe) {
                            if (self->phase_ != Phase::kPipes) {
                              if (pipe) pipe->close();
                              return;
                            }
                            if (error) return self->fail(*error);
                            self->on_accepted(pipe);
                          });
}

void Session::on_accepted(const std::shared_ptr<MessagePipe>& pipe) {
  add_candidate(pipe);

  // Weak: a pipe whose read never ends must not keep the session.
  pipe->read(kPipeHelloBytes, [self = shared_from_this(),
                               weak = std::weak_ptr<MessagePipe>(pipe)](WireMessage message) {
    const auto candidate = weak.lock();
    if (!candidate || self->phase_ != Phase::kPipes) return;
    try {
      const auto hello = from_bytes<PipeHello>(message.payload);
      if (hello.index >= self->pipes_.size() || self->pipes_[hello.index])
        throw Error(ErrorCode::kCorrupt, "a pipe of a session has an impossible place")
            .with("index", hello.index);
      // In this order: when the client's connect() returns, this side takes calls too.
      self->add_pipe(hello.index, candidate);
      candidate->write(pipe_hello(hello.index), [] {});
    } catch (...) {
      self->refuse(transport::caught_error());
    }
  });
}

// Pipe 0 carries small messages, pipe 1 large ones.
void Session::connect_pipes() {
  for (uint32_t index = 0; index < pipes_.size(); ++index) {
    const auto pipe = host_.data().connect(proven_.session, peer());
    add_candidate(pipe);
    pipe->write(pipe_hello(index), [] {});
    pipe->read(kPipeHelloBytes, [self = shared_from_this(), index,
                                 weak = std::weak_ptr<MessagePipe>(pipe)](WireMessage message) {
      const auto candidate = weak.lock();
      if (!candidate || self->phase_ != Phase::kPipes) return;
      try {
        if (from_bytes<PipeHello>(message.payload).index != index)
          throw Error(ErrorCode::kCorrupt, "the two ends of a pipe disagree which one it is");
        self->add_pipe(index, candidate);
      } catch (...) {
        self->refuse(transport::caught_error());
      }
    });
  }
}

void Session::add_candidate(const std::shared_ptr<MessagePipe>& pipe) {
  pipe->set_on_error([self = shared_from_this()](const Error& error) { self->refuse(error); });
  candidates_.push_back(pipe);
}

void Session::add_pipe(uint32_t index, std::shared_ptr<MessagePipe> pipe) {
  pipes_[index] = std::move(pipe);
  if (!pipes_[0] || !pipes_[1]) return;
  // Every connection that the pipes need stands now: each has carried its first message.
  if (listener_) listener_->close();
  listener_.reset();
  candidates_.clear();
  go_up();
}

}  // namespace retort::rpc::detail
