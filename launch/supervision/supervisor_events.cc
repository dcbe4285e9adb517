// What the processes of a run say over their supervision connections.
#include "launch/supervision/supervisor_impl.h"

namespace retort::launch {

void Supervisor::Impl::take_events() {
  using Kind = rpc::SupervisionEvent::Kind;
  for (const rpc::SupervisionEvent& event : options.supervision->take()) {
    const auto child = std::ranges::find_if(children, [&](const Watched& c) {
      return c.life == event.restart && !c.exit_status && c.spec->name() == event.process;
    });
    if (child == children.end()) continue;

    switch (event.kind) {
      case Kind::kConnected: child->connected = true; break;
      case Kind::kDisconnected: child->connected = false; break;
      case Kind::kReport: on_report(*child, event.report); break;
      case Kind::kStopping: child->answer_by.reset(); break;
      case Kind::kSilent:
        child->silent = true;
        observer->on_phase(event.process + " is silent: it stands still, or is cut off");
        break;
      case Kind::kHeard:
        child->silent = false;
        observer->on_phase(event.process + " is heard again");
        break;
    }
  }
}

void Supervisor::Impl::on_report(Watched& child, const std::string& report) {
  const auto status = decode_status(report);
  if (!status) return;
  child.last = *status;
  child.served |= status->state == "serving";
  observer->on_status(*child.spec, *status);
}

}  // namespace retort::launch
