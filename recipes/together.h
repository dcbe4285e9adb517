// Work that every rank does before they go on to a collective.
#pragma once

#include <exception>
#include <string>

#include "base/error.h"
#include "parallel/group.h"

namespace retort::recipes {

// Runs fn, then votes (parallel::agree_or_throw): a rank's own failure is rethrown there as it is, the others get its message. So no
// rank enters the next collective alone. Every rank of `group` calls. One vote.
template <class Fn>
void together(parallel::Group& group, Fn&& fn) {
  std::exception_ptr failure;
  std::string message;
  try {
    fn();
  } catch (const std::exception& e) {
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
