#include "tests/rpc/simulation/world.h"

#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"

namespace retort::rpc::simulation {
namespace {

constexpr int64_t kMostBytes = 1 << 20;

}  // namespace

void World::fail(const std::string& what) {
  if (failure_.empty())
    failure_ = "at " + std::to_string(scheduler.elapsed().count()) + " ms: " + what;
}

bool World::wait_until(const std::function<bool()>& done, milliseconds limit,
                       const std::string& what) {
  const Deadline deadline = Deadline::after(limit);
  while (!done() && failure_.empty()) {
    if (deadline.expired()) fail(what);
    scheduler.sleep(milliseconds(10));
  }
  return failure_.empty();
}

void World::handler_begins(const std::string& caller, uint64_t call, bool large) {
  if (++runs_[call] > 1) fail("the handler of call " + std::to_string(call) + " ran twice");
  if (!ordered || !large) return;
  uint64_t& last = last_large_[caller];
  if (call < last)
    fail("large call " + std::to_string(call) + " of " + caller + " was overtaken by call " +
         std::to_string(last));
  last = call;
}

World::Memory World::memory(const std::string& key, int64_t bytes) {
  static std::vector<char> zeros(kMostBytes);
  RETORT_CHECK(bytes <= kMostBytes);
  enum class State { kNew, kCounted, kGone };
  const std::shared_ptr<Use> use = uses_[key];
  const auto state = std::make_shared<State>(State::kNew);
  const auto free = [use, state, bytes](void*) {
    if (std::exchange(*state, State::kGone) != State::kCounted) return;
    use->bytes -= static_cast<uint64_t>(bytes);
    --use->tensors;
  };
  return {.tensor = at::from_blob(zeros.data(), {bytes}, free, at::kByte),
          .count = [use, state, bytes] {
            if (*state == State::kGone) return;
            *state = State::kCounted;
            use->bytes += static_cast<uint64_t>(bytes);
            ++use->tensors;
          }};
}

}  // namespace retort::rpc::simulation
