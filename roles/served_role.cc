#include "roles/served_role.h"

#include "base/error.h"
#include "roles/serving_loop.h"

namespace retort::roles {

void ServedRole::lead(rpc::HandlerQueue& queue, const std::function<bool()>& stop_asked,
                      const std::function<void(int64_t)>& tick,
                      std::optional<std::chrono::milliseconds> slice) {
  run_serving_loop(
      queue, stop_asked, tick, [this] { return work(); }, slice.value_or(call_slice()));
  stop();
}

void ServedRole::follow(rpc::HandlerQueue&, const std::function<void()>&) {
  RETORT_CHECK(false) << "a role of one rank has nobody to follow";
}

}  // namespace retort::roles
