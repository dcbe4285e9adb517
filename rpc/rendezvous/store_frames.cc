#include "rpc/rendezvous/store_frames.h"

#include <algorithm>
#include <limits>

namespace retort::rpc::rendezvous {
namespace {

constexpr size_t kMaxNamedKeys = 8;

// A Shape says how many keys and values an operation takes; kAny: any number.
struct Shape {
  static constexpr size_t kAny = std::numeric_limits<size_t>::max();
  size_t keys = kAny;
  size_t values = 0;
};

Shape shape_of(const StoreRequest& request) {
  switch (request.op) {
    case StoreOp::kSet: return {.values = request.keys.size()};
    case StoreOp::kGet:
    case StoreOp::kWait:
    case StoreOp::kCheck: return {};
    case StoreOp::kAdd:
    case StoreOp::kDelete: return {.keys = 1};
    case StoreOp::kAppend: return {.keys = 1, .values = 1};
    case StoreOp::kCompareSet: return {.keys = 1, .values = 2};
    case StoreOp::kCountKeys: return {.keys = 0};
  }
  return {};
}

std::string too_large(const char* what, size_t bytes, size_t limit) {
  return std::string(what) + " of " + std::to_string(bytes) + " bytes is too large; the limit is " +
         std::to_string(limit);
}

}  // namespace

std::optional<std::string> problem_of(const StoreRequest& request, const StoreLimits& limits) {
  const Shape shape = shape_of(request);
  const bool keys_fit = shape.keys == Shape::kAny || request.keys.size() == shape.keys;
  if (!keys_fit || request.values.size() != shape.values)
    return "'" + std::string(enum_name(request.op)) + "' does not take " +
           std::to_string(request.keys.size()) + " keys and " +
           std::to_string(request.values.size()) + " values";

  for (const std::string& key : request.keys)
    if (key.size() > limits.max_key_bytes)
      return too_large("a key", key.size(), limits.max_key_bytes);
  for (const std::string& value : request.values)
    if (value.size() > limits.max_value_bytes)
      return too_large("a value", value.size(), limits.max_value_bytes);
  return std::nullopt;
}

size_t num_reply_values(const StoreRequest& request) {
  if (request.op == StoreOp::kGet) return request.keys.size();
  return request.op == StoreOp::kCompareSet ? 1 : 0;
}

std::string key_list(const std::vector<std::string>& keys) {
  std::string list;
  const size_t named = std::min(keys.size(), kMaxNamedKeys);
  for (size_t i = 0; i < named; ++i)
    list += (i == 0 ? "" : ", ") + keys[i];
  if (named < keys.size()) list += " and " + std::to_string(keys.size() - named) + " more";
  return list;
}

}  // namespace retort::rpc::rendezvous
