// The part of Session that runs before the first call: who is there, and two pipes between us.
#include <tensorpipe/core/listener.h>
#include <tensorpipe/tensorpipe.h>

#include <algorithm>

#include "base/hash.h"
#include "base/log.h"
#include "rpc/detail/session.h"

namespace retort::rpc::detail {
namespace {

constexpr std::chrono::seconds kHandshakeTimeout{5};  // for a stranger to prove the secret
// for an authenticated peer to set up its pipes
constexpr std::chrono::seconds kPipesTimeout{15};

// The first message on every pipe, each way.
struct PipeHello {
  std::string token;
  uint32_t index = 0;
  template <class A>
  void serialize(A& archive, uint32_t) {
    archive(token, index);
  }
};

std::shared_ptr<const WireMessage> pipe_hello(const std::string& token, uint32_t index) {
  auto message = std::make_shared<WireMessage>();
  message->payload = to_bytes(PipeHello{token, index});
  return message;
}

}  // namespace

Session::Session(SessionHost& host, boost::asio::ip::tcp::socket socket, std::string target)
    : host_(host),
      loop_(host.loop()),
      target_(std::move(target)),
      control_(std::make_shared<ControlSocket>(std::move(socket))),
      timer_(loop_->io()),
      deadline_timer_(loop_->io()),
      goodbye_timer_(loop_->io()) {
  ours_.nonce = random_hex(32);
  ours_.name = host.options().name;
  ours_.incarnation = host.incarnation();
  ours_.target = target_;
  ours_.max_message_bytes = host.options().rpc.max_message_bytes.bytes;
}

void Session::start() {
  auto self = shared_from_this();
  timer_.expires_after(kHandshakeTimeout);
  timer_.async_wait([self](const boost::system::error_code& code) {
    if (!code && self->phase_ < Phase::kPipes)
      self->fail(Error(ErrorCode::kTimeout, "the handshake was not finished in time"));
  });
  control_->start([self](FrameType type, std::string_view body) { self->on_frame(type, body); },
                  [self](const Error& error) { self->fail(error); });
  if (!target_.empty()) control_->send(frame_bytes(FrameType::kHello, ours_));
}

void Session::on_frame(FrameType type, std::string_view body) {
  if (phase_ == Phase::kDead) return;
  last_heard_ = std::chrono::steady_clock::now();
  try {
    if (phase_ == Phase::kUp || (phase_ == Phase::kPipes && type >= FrameType::kHeartbeat))
      on_control(type, body);
    else
      on_handshake_frame(type, body);
  } catch (const Error& error) {
    refuse(error);
  }
}

void Session::on_handshake_frame(FrameType type, std::string_view body) {
  const bool client = !target_.empty();
  if (client && type == FrameType::kRefuse) {
    const auto farewell = from_bytes<Farewell>(body);
    return fail(Error(checked_code(farewell.code), "refused by the other side: " + farewell.reason)
                    .with("peer", target_));
  }
  if (!client && phase_ == Phase::kHello && type == FrameType::kHello) return on_hello(body);
  if (client && phase_ == Phase::kHello && type == FrameType::kChallenge) return on_challenge(body);
  if (!client && phase_ == Phase::kProof && type == FrameType::kProof) return on_proof(body);
  if (client && phase_ == Phase::kProof && type == FrameType::kListen) return on_listen(body);
  throw Error(ErrorCode::kCorrupt, "a control frame came out of order")
      .with("type", static_cast<int>(type));
}

std::string Session::mac(std::string_view prover) const {
  const bool client = !target_.empty();
  return handshake_mac(host_.options().secret, prover, client ? ours_ : theirs_,
                       client ? theirs_ : ours_);
}

// Tells an honest peer why, then ends. A stranger learns no more than the error's text.
void Session::refuse(const Error& error) {
  if (phase_ == Phase::kDead) return;
  const Farewell farewell{static_cast<uint8_t>(error.code()), error.message().substr(0, 1024)};
  if (phase_ == Phase::kUp) {
    control_->send(frame_bytes(FrameType::kBye, farewell));
  } else if (target_.empty()) {
    control_->send(frame_bytes(FrameType::kRefuse, farewell));
  }
  fail(error);
}

void Session::on_hello(std::string_view body) {
  const Hello hello = parse_hello(body);
  if (hello.target != ours_.name)
    throw Error(ErrorCode::kUnauthenticated, "this is '" + ours_.name + "', not '" +
                                                 hello.target.substr(0, kMaxNameBytes) + "'");
  theirs_ = hello;
  phase_ = Phase::kProof;
  control_->send(frame_bytes(FrameType::kChallenge, ours_));
}

void Session::on_challenge(std::string_view body) {
  theirs_ = parse_hello(body);
  if (theirs_.name != target_)
    throw Error(ErrorCode::kUnauthenticated, "another peer answers at this address")
        .with("wanted", target_)
        .with("found", theirs_.name);
  phase_ = Phase::kProof;
  control_->send(frame_bytes(FrameType::kProof, Proof{mac("client")}));
}

void Session::on_proof(std::string_view body) {
  if (!constant_time_equal(from_bytes<Proof>(body).mac, mac("client")))
    throw Error(ErrorCode::kUnauthenticated, "the secrets differ")
        .with("claims_to_be", theirs_.name);
  open_listener();
}

// Server: from here on the peer is who it says.
void Session::open_listener() {
  phase_ = Phase::kPipes;
  control_->set_max_frame_bytes(kMaxFrameBytes);
  timer_.expires_after(kPipesTimeout);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (!code && self->phase_ == Phase::kPipes)
      self->fail(Error(ErrorCode::kTimeout, "the data connections were not set up in time"));
  });

  // An address for each transport: uv's on the interface that the peer came in by.
  std::vector<std::string> urls;
  for (const auto& transport : host_.options().rpc.transports)
    urls.push_back(transport == "uv" ? "uv://" + control_->local_host() + ":0"
                                     : transport + "://retort-" + random_hex(12));

  // The token tells the pipes of this session from those of strangers.
  Listen listen;
  token_ = random_hex(32);
  listen.mac = mac("server");
  listen.token = token_;
  try {
    listener_ = host_.transport().listen(urls);
    for (const auto& transport : host_.options().rpc.transports)
      listen.addresses[transport] = listener_->url(transport);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kUnavailable,
                std::string("cannot listen for data connections: ") + e.what());
  }

  accept_pipe();
  control_->send(frame_bytes(FrameType::kListen, listen));
}

void Session::accept_pipe() {
  if (accepts_left_-- <= 0)
    throw Error(ErrorCode::kUnauthenticated, "too many strangers on the data listener");
  listener_->accept([self = shared_from_this()](const tensorpipe::Error& error,
                                                std::shared_ptr<tensorpipe::Pipe> pipe) noexcept {
    self->loop_->post([self, error, pipe = std::move(pipe)] {
      if (self->phase_ != Phase::kPipes) {
        if (pipe) pipe->close();
        return;
      }
      if (error)
        return self->fail(
            Error(ErrorCode::kPeerLost, "accepting a data connection failed: " + error.what()));
      self->on_accepted(pipe);
    });
  });
}

void Session::on_accepted(std::shared_ptr<tensorpipe::Pipe> tensorpipe_pipe) {
  auto self = shared_from_this();
  auto pipe = std::make_shared<DataPipe>(*loop_, host_.receive_pool(), host_.options().devices,
                                         std::move(tensorpipe_pipe), nullptr);
  candidates_.push_back(pipe);

  // Weak: a pipe whose read never ends must not keep the session.
  pipe->read(kPipeHelloBytes, [self, weak = std::weak_ptr<DataPipe>(pipe)](WireMessage message) {
    auto candidate = weak.lock();
    if (!candidate || self->phase_ != Phase::kPipes) return;
    try {
      const auto hello = from_bytes<PipeHello>(message.payload);
      if (hello.index < 2 && !self->pipes_[hello.index] &&
          constant_time_equal(hello.token, self->token_)) {
        // In this order: when the client's connect() returns, this side takes calls too.
        self->add_pipe(hello.index, candidate);
        return candidate->write(pipe_hello(self->token_, hello.index), [] {});
      }
    } catch (const Error&) {  // a stranger's first message: only its pipe ends
    }
    RETORT_LOG(kWarning) << "a stranger on the data listener for " << self->peer()
                         << " was refused";
    candidate->close();
  });

  // Another pipe may come: the peer's second, or a stranger's.
  try {
    accept_pipe();
  } catch (const Error& error) {
    refuse(error);
  }
}

void Session::on_listen(std::string_view body) {
  const auto listen = from_bytes<Listen>(body);
  if (!constant_time_equal(listen.mac, mac("server")))
    throw Error(ErrorCode::kUnauthenticated, "the other side did not prove the secret")
        .with("peer", target_);
  phase_ = Phase::kPipes;
  control_->set_max_frame_bytes(kMaxFrameBytes);
  timer_.expires_after(kPipesTimeout);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& code) {
    if (!code && self->phase_ == Phase::kPipes)
      self->fail(Error(ErrorCode::kTimeout, "the data connections were not set up in time"));
  });
  connect_pipes(listen);
}

void Session::connect_pipes(const Listen& listen) {
  // uv reaches every host, and the pipe itself then moves to the best transport both sides have.
  std::string url;
  for (const auto& transport : host_.options().rpc.transports)
    if (const auto found = listen.addresses.find(transport);
        found != listen.addresses.end() && (url.empty() || transport == "uv"))
      url = found->second;
  if (url.empty())
    throw Error(ErrorCode::kMismatch,
                "the two sides have no transport in common; set rpc.transports alike")
        .with("peer", target_);

  // Pipe 0 carries small messages, pipe 1 large ones.
  auto self = shared_from_this();
  for (uint32_t index = 0; index < 2; ++index) {
    std::shared_ptr<tensorpipe::Pipe> tensorpipe_pipe;
    try {
      tensorpipe_pipe =
          host_.transport().connect(url, tensorpipe::PipeOptions().remoteName(target_));
    } catch (const std::exception& e) {
      throw Error(ErrorCode::kUnavailable,
                  std::string("cannot open a data connection: ") + e.what())
          .with("peer", target_);
    }

    // The token goes over each pipe, and must come back before the pipe counts.
    auto pipe = std::make_shared<DataPipe>(*loop_, host_.receive_pool(), host_.options().devices,
                                           std::move(tensorpipe_pipe),
                                           [self](const Error& error) { self->refuse(error); });
    candidates_.push_back(pipe);
    pipe->write(pipe_hello(listen.token, index), [] {});
    pipe->read(kPipeHelloBytes, [self, index, token = listen.token](WireMessage message) {
      if (self->phase_ != Phase::kPipes) return;
      try {
        const auto hello = from_bytes<PipeHello>(message.payload);
        if (hello.index != index || !constant_time_equal(hello.token, token))
          throw Error(ErrorCode::kUnauthenticated,
                      "another process answers on the data connection");
        self->add_pipe(index, self->candidates_[index]);
      } catch (const Error& error) {
        self->fail(error);
      }
    });
  }
}

void Session::add_pipe(uint32_t index, std::shared_ptr<DataPipe> pipe) {
  pipe->set_on_error([self = shared_from_this()](const Error& error) { self->refuse(error); });
  pipes_[index] = std::move(pipe);
  if (!pipes_[0] || !pipes_[1]) return;
  // Every connection that the pipes need stands now: each has carried its first message.
  if (listener_) listener_->close();
  listener_.reset();
  for (auto& candidate : candidates_)
    if (candidate != pipes_[0] && candidate != pipes_[1]) candidate->close();
  candidates_.clear();
  go_up();
}

}  // namespace retort::rpc::detail
