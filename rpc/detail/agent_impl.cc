#include "rpc/detail/agent_impl.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "rpc/detail/data_pipe.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/tcp_network.h"
#include "rpc/network/message_pipe.h"

namespace retort::rpc {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxSessionsPerPeer = 4;  // connections of one living peer

}  // namespace

Agent::Impl::Impl(Options options)
    : options_(std::move(options)),
      incarnation_(random_hex(16)),
      network_(options_.network ? options_.network
                                : std::make_shared<detail::TcpNetwork>(options_)),
      loop_(network_->loop()),
      receive_budget_(options_.rpc.receive_budget.bytes, options_.rpc.max_inflight_bytes.bytes,
                      options_.rpc.max_message_bytes.bytes),
      peers_(options_.rpc.max_inflight_bytes.bytes,
             static_cast<uint64_t>(options_.rpc.max_inflight_calls)),
      shutdown_(options_.name, network_, sessions_) {
  network_->open_port([this](std::shared_ptr<transport::Stream> stream,
                             const transport::Proven& who) {
    auto session = std::make_shared<detail::Session>(*this, std::move(stream), who, std::nullopt);
    session_begins(session);
    session->start();
  });
  if (!options_.device.is_cpu())
    loop_->post([device = options_.device] { use_device_in_thread(device); });
  loop_->start();
}

Agent::Impl::~Impl() = default;

std::shared_ptr<transport::PeerDial> Agent::Impl::dial(transport::PeerPort peer) {
  return network_->dial(std::move(peer));
}

void Agent::Impl::connect(std::string_view peer, const std::string& address, Deadline deadline,
                          Attempts attempts) {
  RETORT_CHECK(!future_detail::on_loop_thread()) << "Agent::connect() on a loop thread";
  start_connect(peer, address, deadline, attempts).get();
}

Future<Empty> Agent::Impl::start_connect(std::string_view peer, const std::string& address,
                                         Deadline deadline, Attempts attempts) {
  if (peer.empty() || peer.size() > detail::kMaxNameBytes)
    throw Error(ErrorCode::kInvalidArgument, "connect() needs the peer's name, like 'teacher/0'");
  const std::string name(peer);
  Promise<Empty> promise;
  auto done = promise.future();
  const bool posted = loop_->post(
      [this, promise, name, where = detail::parse_address(address), deadline, attempts]() mutable {
        if (shutdown_.begun()) {
          promise.set_error(std::make_exception_ptr(detail::agent_closed()));
          return;
        }
        std::erase_if(connectors_, [](const auto& weak) { return weak.expired(); });
        auto connector = std::make_shared<detail::Connector>(
            *this, std::move(name), std::move(where), deadline, attempts, promise);
        connectors_.push_back(connector);
        // The connector holds the promise, so the promise holds the connector weakly.
        promise.on_cancel([loop = loop_, weak = std::weak_ptr(connector)] {
          loop->post([weak] {
            if (const auto there = weak.lock())
              there->abort(Error(ErrorCode::kCancelled, "the connection is not wanted any more"));
          });
        });
        connector->start();
      });
  if (!posted) throw detail::agent_closed();
  return done.then([this, name, address](Empty) { peers_.set_address(name, address); });
}

std::function<void()> Agent::Impl::call(std::string_view peer, MethodId method, Message message,
                                        CallOptions options,
                                        std::function<void(Outcome<Message>)> done) {
  RETORT_CHECK(!method.name.empty() && method.name.size() <= detail::kMaxMethodBytes)
      << "method name '" << method.name << "'";
  auto call = std::make_shared<detail::OutgoingCall>();
  call->id = next_call_id_++;
  call->method = method.name;
  call->timeout = options.timeout.count() > 0 ? options.timeout : options_.rpc.timeout;
  auto queue_timeout = options_.rpc.queue_timeout;
  if (options.queue_timeout.count() > 0) queue_timeout = options.queue_timeout;
  if (queue_timeout) call->queue_deadline = Deadline::after(*queue_timeout);

  // Everything that can be refused is refused here, on the caller's thread; the last step waits for
  // credit.
  auto wire = std::make_shared<detail::WireMessage>();
  std::shared_ptr<detail::PeerState> state;
  try {
    state = peers_.live(std::string(peer));
    wire->payload = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                          .call_id = call->id,
                                          .method = call->method,
                                          .schema = method.schema,
                                          .timeout_ms = call->timeout.count(),
                                          .queue_timeout_ms = queue_timeout.value_or(0ms).count(),
                                          .trace_id = call->id},
                                         message.envelope);
    wire->tensors = std::move(message.tensors);
    detail::address(*wire, state->name(),
                    std::min(options_.rpc.max_message_bytes.bytes, state->max_message_bytes()),
                    options_.rpc, options_.devices.get(), state->sees_devices());
    detail::begin_send(wire->tensors, options_.devices.get());
    // On the loop thread a call overdraws: a loop that waits could not take the replies that give
    // credit back.
    using detail::NoCredit;
    const auto without = !options.wait_for_credit          ? NoCredit::kFail
                         : future_detail::on_loop_thread() ? NoCredit::kOverdraw
                                                           : NoCredit::kWait;
    wire->credit = detail::PeerState::acquire(state, wire->size_bytes(), call->queue_deadline,
                                              without, &call->waited);
    call->peer = std::move(state);
  } catch (...) {
    if (state) state->methods().count_called(call->method, {.waited = call->waited});
    Outcome<Message> outcome;
    outcome.error = std::current_exception();
    done(std::move(outcome));
    return [] {};
  }

  // The rest happens on the loop thread.
  call->message = std::move(wire);
  call->done = std::move(done);
  if (!loop_->post([this, call] { dispatch(call); })) call->fail(detail::agent_closed());
  return [loop = loop_, weak = std::weak_ptr<detail::OutgoingCall>(call)] {
    loop->post([weak] {
      const auto running = weak.lock();
      const auto session = running ? running->session.lock() : nullptr;
      if (session)
        session->cancel(running->id, Error(ErrorCode::kCancelled, "the call was cancelled"));
    });
  };
}

void Agent::Impl::dispatch(const std::shared_ptr<detail::OutgoingCall>& call) {
  if (shutdown_.begun()) return call->fail(detail::agent_closed());
  const auto found = up_.find(call->peer->name());
  if (found != up_.end())
    for (auto session = found->second.rbegin(); session != found->second.rend(); ++session)
      if ((*session)->takes_calls()) return (*session)->send(call);
  call->fail(Error(ErrorCode::kPeerLost, "the connection ended before the call was sent")
                 .with("peer", call->peer->name()));
}

void Agent::Impl::serve(std::string_view method, detail::Handler handler) {
  RETORT_CHECK(handler.queue && !method.empty() && method.size() <= detail::kMaxMethodBytes)
      << "serve '" << method << "'";
  std::lock_guard lock(mutex_);
  if (!handlers_.emplace(method, std::make_shared<const detail::Handler>(std::move(handler)))
           .second)
    throw Error(ErrorCode::kInvalidArgument, "this method is served already")
        .with("method", method);
}

std::shared_ptr<const detail::Handler> Agent::Impl::handler(const std::string& method) const {
  std::lock_guard lock(mutex_);
  const auto found = handlers_.find(method);
  return found == handlers_.end() ? nullptr : found->second;
}

void Agent::Impl::on_peer_lost(
    std::function<void(const std::string&, const std::string&)> callback) {
  std::lock_guard lock(mutex_);
  lost_callback_ = std::move(callback);
}

void Agent::Impl::admit(const std::string& peer, uint64_t restart) {
  uint64_t& newest = newest_[peer];
  if (restart < newest)
    throw Error(ErrorCode::kMismatch, "a process that was replaced by a newer one of its name")
        .with("peer", peer)
        .with("restart", restart)
        .with("newest", newest);
  newest = restart;
}

void Agent::Impl::session_begins(const SessionPtr& session) { sessions_.push_back(session); }

void Agent::Impl::session_up(const SessionPtr& session) {
  auto& sessions = up_[session->peer()];
  const auto older = sessions;  // a copy: one that fails leaves `sessions`
  sessions.push_back(session);
  peers_.set_live(session->peer(), true);
  RETORT_LOG(kDebug) << options_.name << " is connected to " << session->peer();

  // Connections to an earlier process of the peer end. Of those to the present one the newest stay,
  // up to the bound.
  size_t num_older = older.size();
  for (const auto& other : older) {
    const bool restarted = other->peer_incarnation() != session->peer_incarnation();
    if (restarted || num_older >= kMaxSessionsPerPeer) {
      --num_older;
      other->fail(Error(ErrorCode::kPeerLost, restarted ? "the peer came back as a new process"
                                                        : "the peer connected too often"));
    }
  }
  if (shutdown_.begun()) session->fail(detail::agent_closed());
}

void Agent::Impl::session_down(const SessionPtr& session, const Error& reason) {
  std::erase(sessions_, session);
  const auto found = up_.find(session->peer());
  if (found != up_.end() && std::erase(found->second, session) > 0) {
    const bool last = found->second.empty();
    if (last) up_.erase(found);
    RETORT_LOG(kDebug) << options_.name << " lost a connection to " << session->peer() << ": "
                       << reason.what();
    LostCallback callback;
    // A peer is lost when its last connection has ended. The callback runs without the lock, so
    // that it may call the agent.
    if (last) {
      peers_.set_live(session->peer(), false);
      std::lock_guard lock(mutex_);
      if (!shutdown_.begun()) callback = lost_callback_;
    }
    if (callback) callback(session->peer(), reason.what());
  } else if (reason.code() != ErrorCode::kClosed) {
    RETORT_LOG(kDebug) << options_.name
                       << ": a connection ended before it was up: " << reason.what();
  }
  session_idle();
}

void Agent::Impl::close() {
  if (peers_.close()) loop_->post([this] { begin_close(); });
}

void Agent::Impl::begin_close() {
  shutdown_.begin();
  for (const auto& weak : connectors_)
    if (const auto connector = weak.lock()) connector->abort(detail::agent_closed());
  shutdown_.drain();
}

void Agent::Impl::join() {
  RETORT_CHECK(!future_detail::on_loop_thread())
      << "Agent::join() on a loop thread waits for itself";
  close();
  shutdown_.join();
}

}  // namespace retort::rpc
