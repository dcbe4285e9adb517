// Work that every rank does before they go on to a collective.
#pragma once

#include <exception>
#include <string>

#include "base/error.h"
#include "parallel/group.h"

namespace retort::recipes {

// Whether a group cannot be used any more. Its other ranks may never come to a vote, and waiting
// for them costs the timeout again.
inline bool broke_a_group(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  if (error == nullptr ||
      (error->code() != ErrorCode::kCollective && error->code() != ErrorCode::kTimeout))
    return false;
  // A collective's time is up, not that of a call to another role: both have the code.
  bool group = false, operation = false;
  for (const auto& [key, value] : error->context())
    group |= key == "group", operation |= key == "op";
  return group && operation;
}

// Runs fn, then votes (parallel::agree_or_throw): a rank's own failure is rethrown there as it is,
// the others get its message. So no rank enters the next collective alone. A collective that fails
// in fn is rethrown without a vote: the others see this rank leave. Every rank of `group` calls.
// One vote.
template <class Fn>
void together(parallel::Group& group, Fn&& fn) {
  std::exception_ptr failure;
  std::string message;
  try {
    fn();
  } catch (const std::exception& e) {
    if (broke_a_group(e)) throw;
    failure = std::current_exception();
    message = e.what();
  }
  try {
    parallel::agree_or_throw(group, message);
  } catch (const Error&) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
}

}  // namespace retort::recipes
