#include "tests/rpc/transport/node.h"

#include <thread>
#include <utility>

#include "rpc/transport/tls_context.h"
#include "tests/rpc/transport/echo_pipe.h"

namespace retort::rpc::transport::testing {
namespace {

StreamFactory factory_of(const NodeOptions& options) {
  if (!options.tls) return StreamFactory();
  return StreamFactory(
      std::make_shared<TlsContext>(options.identity.credentials, std::make_shared<TlsThreads>()));
}

SessionsOptions sessions_options(const NodeOptions& options) {
  return {.dial_timeout = options.dial_timeout};
}

}  // namespace

struct Node::Control {
  Proven who;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<tensorpipe::Listener> listener;
  char byte = 0;
};

Identity identity_of(std::string name) {
  return {.name = std::move(name),
          .run = "run 7",
          .schema = "schema 1",
          .credentials = {{"first", "the secret of these tests"}}};
}

NodeOptions node_options(std::string name) {
  NodeOptions options;
  options.identity = identity_of(std::move(name));
  options.acceptor.proof_timeout = 60'000ms;  // however slow the machine
  options.context.greeting_timeout = 60'000ms;
  return options;
}

Node::Node(NodeOptions given)
    : options(std::move(given)),
      loop(std::make_shared<rpc::detail::Loop>()),
      streams(factory_of(options)),
      sessions(
          std::make_shared<Sessions>(loop, options.identity, streams, sessions_options(options))),
      context(std::make_shared<Context>(loop, options.context, sessions)) {
  rpc::detail::SigpipeBlock no_sigpipe;
  tensorpipe = std::make_shared<tensorpipe::Context>();
  tensorpipe->registerTransport(1, "retort", context);
  int64_t priority = 10;
  for (const auto& name : options.channels)
    tensorpipe->registerChannel(
        priority--, name,
        name == "cma" ? tensorpipe::channel::cma::create() : tensorpipe::channel::basic::create());

  AcceptorHandlers handlers;
  handlers.find_session = [this](const std::string& id) { return sessions->find(id); };
  handlers.on_control = [this](std::shared_ptr<Stream> stream, const Proven& who) {
    on_control(std::move(stream), who, true);
  };
  handlers.on_data = [this](std::shared_ptr<Stream> stream, const Proven& who) {
    context->deliver(who.session, std::move(stream));
  };
  acceptor = std::make_shared<Acceptor>(loop, options.acceptor, options.identity, streams,
                                        std::move(handlers));
  acceptor->start();
  loop->start();
}

Node::~Node() { close(); }

void Node::on_loop(std::function<void()> task) {
  std::promise<void> done;
  RETORT_CHECK(loop->post([&] {
    task();
    done.set_value();
  }));
  done.get_future().get();
}

// A server opens its listener, then says so: one byte. Both sides see the end of the session as the
// end of this connection.
void Node::on_control(std::shared_ptr<Stream> stream, const Proven& who, bool serves) {
  auto control = std::make_shared<Control>();
  control->who = who;
  control->stream = std::move(stream);
  controls_[who.session] = control;
  if (serves) {
    sessions->open(who, "", "");
    control->listener = tensorpipe->listen({"retort://" + session_address(who.session)});
    accept(control->listener);
    control->byte = '+';
    write_all(control->stream, boost::asio::buffer(&control->byte, 1), [control](const auto&) {});
  }
  auto byte = std::make_shared<char>();
  read_all(control->stream, boost::asio::buffer(byte.get(), 1),
           [this, control, byte](const boost::system::error_code&) {
             control->stream->close();
             drop(control->who.session);
           });
}

void Node::drop(const std::string& session) {
  const auto found = controls_.find(session);
  if (found == controls_.end()) return;
  const auto control = found->second;
  controls_.erase(found);
  if (control->listener) control->listener->close();
  control->stream->close();
  sessions->end(session);
  context->end_session(session);
}

void Node::accept(const std::shared_ptr<tensorpipe::Listener>& listener) {
  listener->accept(
      [this, listener](const tensorpipe::Error& error, std::shared_ptr<tensorpipe::Pipe> pipe) {
        if (error) return;
        ++pipes_served;
        EchoPipe::serve(std::move(pipe));
        accept(listener);
      });
}

HandshakeResult Node::dial(const std::string& address, ProofTarget target) {
  const auto colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  PeerPort peer{host, address.substr(colon + 1), std::move(target)};

  std::promise<HandshakeResult> promise;
  on_loop([&] {
    std::make_shared<Dial>(loop->io(), options.identity, streams, SocketOptions{}, peer)
        ->start(soon(),
                [&promise](HandshakeResult result) { promise.set_value(std::move(result)); });
  });
  return promise.get_future().get();
}

std::string Node::connect(const std::string& peer, const std::string& address) {
  HandshakeResult result = dial(address, {.name = peer});
  if (result.error) throw Error(*result.error);

  const auto ready = std::make_shared<std::promise<bool>>();
  const auto byte = std::make_shared<char>();
  on_loop([&] {
    const auto colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    if (host.front() == '[') host = host.substr(1, host.size() - 2);
    sessions->open(result.proven, host, address.substr(colon + 1));
    read_all(result.stream, boost::asio::buffer(byte.get(), 1),
             [this, ready, byte, stream = result.stream, who = result.proven](const auto& code) {
               if (!code) on_control(stream, who, false);
               ready->set_value(!code);
             });
  });
  if (!ready->get_future().get()) throw Error(ErrorCode::kPeerLost, "the session did not open");
  return result.proven.session;
}

uint64_t Node::refused(Refusal refusal, uint64_t expected) {
  const auto deadline = soon();
  while (acceptor->counters().of(refusal) < expected && !deadline.expired())
    std::this_thread::sleep_for(1ms);
  return acceptor->counters().of(refusal);
}

Proven Node::session(const std::string& id) {
  Proven who;
  on_loop([&] { who = controls_.at(id)->who; });
  return who;
}

std::shared_ptr<tensorpipe::Pipe> Node::pipe(const std::string& session) {
  return tensorpipe->connect("retort://" + session_address(session));
}

void Node::end_session(const std::string& session) {
  on_loop([&] { drop(session); });
}

void Node::close() {
  if (std::exchange(closed_, true)) return;
  on_loop([this] {
    acceptor->close();
    while (!controls_.empty())
      drop(std::string(controls_.begin()->first));
    sessions->close();
  });
  tensorpipe->close();
  tensorpipe->join();
  loop->stop();
}

}  // namespace retort::rpc::transport::testing
