// What the processes of a run say over their supervision connections.
#include <algorithm>

#include "base/sizes.h"
#include "launch/supervision/supervisor_impl.h"

namespace retort::launch {
namespace {

// A process that lives dials again at once when its connection breaks.
constexpr std::chrono::milliseconds kDialAgain{2'000};

}  // namespace

void Supervisor::Impl::take_events() {
  using Kind = rpc::SupervisionEvent::Kind;
  for (const rpc::SupervisionEvent& event : options.supervision->take()) {
    const auto child = std::ranges::find_if(children, [&](const Watched& c) {
      return c.life == event.restart && !c.exit_status && c.spec->name() == event.process;
    });
    if (child == children.end()) continue;

    switch (event.kind) {
      case Kind::kConnected:
        child->connected = true;
        child->connect_by.reset();
        child->back_by.reset();
        break;
      case Kind::kDisconnected:
        child->connected = false;
        child->back_by = Deadline::after(kDialAgain);
        break;
      case Kind::kReport: on_report(*child, event.report); break;
      case Kind::kStopping: child->answer_by.reset(); break;
      case Kind::kSilent:
        child->silent = true;
        if (child->joined) {
          child->joined->lose();
          break;
        }
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

  // Of one that joined: a signal is one to the run, and its last word says how it ends.
  // One that this supervisor brought about, or that comes while all are being ended, is none.
  if (child.joined && status->signal != 0) {
    const bool is_asked = child.asked_to_stop || phase == Phase::kFailing;
    if (!is_asked) signalled(to_int(status->signal), /*is_own=*/false);
    return;
  }
  if (child.joined && status->ended) {
    child.joined->end(to_int(std::clamp<int64_t>(*status->ended, -64, 255)));
    return;
  }
  child.last = *status;
  child.served |= status->state == "serving";
  observer->on_status(*child.spec, *status);
}

// A process that was told what it is and does not come has ended meanwhile. Where something failed
// already, one whose connection broke is rather the cause than somebody who will be heard again.
void Supervisor::Impl::look_for_joined() {
  for (Watched& child : children) {
    if (!child.joined || child.gone()) continue;
    const bool never_came = child.connect_by && child.connect_by->expired();
    const bool is_cause = phase == Phase::kFailing && child.back_by && child.back_by->expired();
    if (never_came || is_cause) child.joined->lose();
  }
}

}  // namespace retort::launch
