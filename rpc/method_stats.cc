#include "rpc/method_stats.h"

namespace retort::rpc {

MethodStats& MethodStats::operator+=(const MethodStats& other) {
  calls += other.calls;
  errors += other.errors;
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  credit_waits += other.credit_waits;
  credit_wait_seconds += other.credit_wait_seconds;
  queue += other.queue;
  handler += other.handler;
  wire += other.wire;
  return *this;
}

MethodStats MethodStats::since(const MethodStats& before) const {
  return {.calls = calls - before.calls,
          .errors = errors - before.errors,
          .bytes_sent = bytes_sent - before.bytes_sent,
          .bytes_received = bytes_received - before.bytes_received,
          .credit_waits = credit_waits - before.credit_waits,
          .credit_wait_seconds = credit_wait_seconds - before.credit_wait_seconds,
          .queue = queue.since(before.queue),
          .handler = handler.since(before.handler),
          .wire = wire.since(before.wire)};
}

}  // namespace retort::rpc
