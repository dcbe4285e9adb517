#include "tests/rpc/simulation/port_dial.h"

#include <utility>

#include "tests/rpc/simulation/memory_stream.h"

namespace retort::rpc::simulation {

void PortDial::start(Deadline deadline, transport::Handshake::Done done) {
  done_ = std::move(done);
  Scheduler& scheduler = host_->network().scheduler();
  const auto on_loop = [this, self = shared_from_this()](auto task) {
    return [self, task] { self->host_->post([self, task] { task(*self); }); };
  };
  scheduler.after(deadline.remaining(), on_loop([](PortDial& dial) {
                    dial.fail(Error(ErrorCode::kTimeout, "nobody answered by the deadline"));
                  }));
  scheduler.after(host_->network().latency(), [self = shared_from_this()] { self->knock(); });
}

// At the other host.
void PortDial::knock() {
  Network& network = host_->network();
  Host* const there = network.at(peer_.host + ":" + peer_.port);
  if (host_->killed() || (there && network.parted(*host_, *there))) return;  // no answer
  const auto refused = [&](const Error& error) {
    network.scheduler().after(network.latency(), [self = shared_from_this(), error] {
      self->host_->post([self, error] { self->fail(error); });
    });
  };
  if (there == nullptr || there->killed())
    return refused(Error(ErrorCode::kPeerLost, "nobody listens there"));
  if (there->name() != peer_.target.name)
    return refused(Error(ErrorCode::kUnauthenticated, "another process answers there"));
  ++network.traffic().dials;
  const auto let_in = [self = shared_from_this(), there = there->shared_from_this()] {
    there->post([self, there] { self->let_in(*there); });
  };
  const milliseconds busy = network.session_time(*there);
  if (busy.count() == 0) return let_in();
  network.scheduler().after(busy, let_in);
}

// On the other host's loop, which may have been frozen for long.
void PortDial::let_in(Host& there) {
  Network& network = host_->network();
  if (!there.on_control_) {
    network.scheduler().after(network.latency(), [self = shared_from_this()] {
      self->host_->post(
          [self] { self->fail(Error(ErrorCode::kPeerLost, "nobody listens there")); });
    });
    return;
  }

  const auto ours = std::make_shared<MemoryStream>(host_);
  const auto theirs = std::make_shared<MemoryStream>(there.shared_from_this());
  MemoryStream::join(ours, theirs);
  network.connect(ConnectionKind::kControl, ours, theirs);
  const std::string session = "session " + std::to_string(network.next_session_++);
  const Host::OnControl on_control = there.on_control_;
  on_control(theirs, {.peer = host_->name(), .session = session});
  finish_later({.stream = ours, .proven = {.peer = there.name(), .session = session}});
}

void PortDial::finish_later(transport::HandshakeResult result) {
  Network& network = host_->network();
  const milliseconds busy = network.session_time(*host_);
  network.scheduler().after(network.latency() + busy, [self = shared_from_this(), result] {
    self->host_->post([self, result] {
      const auto done = std::exchange(self->done_, nullptr);
      if (done) return done(result);
      result.stream->close();
    });
  });
}

void PortDial::fail(const Error& error) {
  const auto done = std::exchange(done_, nullptr);
  if (done) done({.refusal = transport::Refusal::kTimeout, .error = error});
}

}  // namespace retort::rpc::simulation
