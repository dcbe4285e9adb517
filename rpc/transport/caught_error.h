// What ended a handler of the loop thread, as the Error that its connection ends with: memory that
// is not there costs the connection that wanted it, not the process.
//
// Use: try { ... } catch (...) { return fail(caught_error()); }
// Errors: anything else than an Error or a failed allocation is a bug, and goes on as it came.
#pragma once

#include <new>
#include <stdexcept>

#include "base/error.h"

namespace retort::rpc::transport {

inline Error caught_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "no memory for what a connection brought");
  } catch (const std::length_error&) {
    return Error(ErrorCode::kResourceExhausted, "no memory can be as large as what was asked for");
  }
}

}  // namespace retort::rpc::transport
