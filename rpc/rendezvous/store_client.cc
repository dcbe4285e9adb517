#include "rpc/rendezvous/store_client.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace retort::rpc::rendezvous {
namespace {

std::string to_text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }
std::vector<uint8_t> to_value(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<std::string> to_texts(const std::vector<std::vector<uint8_t>>& values) {
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const auto& value : values)
    texts.push_back(to_text(value));
  return texts;
}

std::chrono::milliseconds checked_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "the timeout of a store must be positive")
        .with("ms", timeout.count());
  return timeout;
}

// "store get of 'run/a/key'": what failed, as every message begins.
std::string description(StoreOp op, const std::string& keys) {
  return "store " + std::string(enum_name(op)) + (keys.empty() ? "" : " of '" + keys + "'");
}

[[noreturn]] void throw_as_c10(const std::string& what, const Error& error) {
  const std::string text = what + " failed: " + error.what();
  switch (error.code()) {
    case ErrorCode::kPeerLost:
    case ErrorCode::kClosed: C10_THROW_ERROR(DistNetworkError, text);
    case ErrorCode::kInvalidArgument: C10_THROW_ERROR(ValueError, text);
    default: C10_THROW_ERROR(DistStoreError, text);
  }
}

// Throws for a reply that is not "done", as c10d's own stores do.
void require_done(const std::string& what, const StoreReply& reply) {
  switch (reply.status) {
    case StoreStatus::kDone: return;
    case StoreStatus::kRefused: C10_THROW_ERROR(ValueError, what + " failed: " + reply.text);
    case StoreStatus::kTimedOut:
    case StoreStatus::kFull: C10_THROW_ERROR(DistStoreError, what + " failed: " + reply.text);
  }
}

}  // namespace

StoreClient::StoreClient(std::shared_ptr<StoreSession> session, std::chrono::milliseconds timeout)
    : Store(checked_timeout(timeout)), session_(std::move(session)) {}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  return c10::make_intrusive<StoreClient>(session_, timeout_);
}

void StoreClient::setTimeout(const std::chrono::milliseconds& timeout) {
  timeout_ = checked_timeout(timeout);
}

StoreReply StoreClient::call(StoreRequest request, std::chrono::milliseconds timeout) {
  const std::string what = description(request.op, key_list(request.keys));
  if (const auto problem = problem_of(request, session_->limits()))
    C10_THROW_ERROR(ValueError, what + " failed: " + *problem);

  timeout = std::min<std::chrono::milliseconds>(timeout, kMaxStoreTimeout);
  request.timeout_ms = timeout.count();
  const size_t num_values = num_reply_values(request);
  // The server ends a wait itself, and its answer names the missing keys. So it gets a little
  // longer than the timeout to answer.
  const bool waits = request.op == StoreOp::kGet || request.op == StoreOp::kWait;
  const Deadline deadline =
      Deadline::after(waits ? timeout + std::chrono::milliseconds(kAnswerGrace) : timeout);

  StoreReply reply;
  try {
    reply = session_->call(std::move(request), deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw_as_c10(what, error);
    throw_as_c10(what, Error(ErrorCode::kTimeout, "timed out: the run's store did not answer")
                           .with("store", session_->address())
                           .with("ms", timeout.count()));
  }
  require_done(what, reply);
  // All callers read as many values as they have asked for, so the number is checked here.
  if (reply.values.size() != num_values)
    C10_THROW_ERROR(DistStoreError, what + " failed: the run's store answered with " +
                                        std::to_string(reply.values.size()) +
                                        " values instead of " + std::to_string(num_values));
  return reply;
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  call({.op = StoreOp::kSet, .keys = {key}, .values = {to_text(value)}});
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  const StoreReply reply = call(
      {.op = StoreOp::kCompareSet, .keys = {key}, .values = {to_text(expected), to_text(desired)}});
  return to_value(reply.values.at(0));
}

std::vector<uint8_t> StoreClient::get(const std::string& key) {
  const StoreReply reply = call({.op = StoreOp::kGet, .keys = {key}});
  return to_value(reply.values.at(0));
}

int64_t StoreClient::add(const std::string& key, int64_t value) {
  return call({.op = StoreOp::kAdd, .keys = {key}, .number = value}).number;
}

bool StoreClient::deleteKey(const std::string& key) {
  return call({.op = StoreOp::kDelete, .keys = {key}}).number == 1;
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  return call({.op = StoreOp::kCheck, .keys = keys}).number == 1;
}

int64_t StoreClient::getNumKeys() { return call({.op = StoreOp::kCountKeys}).number; }

void StoreClient::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void StoreClient::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  call({.op = StoreOp::kWait, .keys = keys}, timeout.count() > 0 ? timeout : timeout_);
}

void StoreClient::append(const std::string& key, const std::vector<uint8_t>& value) {
  call({.op = StoreOp::kAppend, .keys = {key}, .values = {to_text(value)}});
}

std::vector<std::vector<uint8_t>> StoreClient::multiGet(const std::vector<std::string>& keys) {
  const StoreReply reply = call({.op = StoreOp::kGet, .keys = keys});
  std::vector<std::vector<uint8_t>> values;
  values.reserve(reply.values.size());
  for (const std::string& value : reply.values)
    values.push_back(to_value(value));
  return values;
}

void StoreClient::multiSet(const std::vector<std::string>& keys,
                           const std::vector<std::vector<uint8_t>>& values) {
  call({.op = StoreOp::kSet, .keys = keys, .values = to_texts(values)});
}

}  // namespace retort::rpc::rendezvous
