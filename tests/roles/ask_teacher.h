// A teacher asked without RPC.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "roles/teacher/server.h"

namespace retort::roles {

using CancelFlag = std::shared_ptr<std::atomic<bool>>;

// What a handler would know of a call.
inline rpc::CallContext some_call(
    CancelFlag cancelled = std::make_shared<std::atomic<bool>>(false)) {
  return {.peer = "student/0", .call_id = 1, .cancelled = std::move(cancelled)};
}

// Computes all that waits, and then `request`.
inline Payload ask_teacher(Teacher& teacher, const ForwardRequest& request) {
  Future<Payload> reply = teacher.enqueue(request, some_call());
  while (teacher.work()) {
  }
  return reply.get(Deadline::after(std::chrono::seconds(30)));
}

}  // namespace retort::roles
