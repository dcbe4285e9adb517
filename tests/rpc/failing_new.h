// Memory that is not there, for a test: a program that links this has an operator new that fails as
// long as somebody wants it to.
#pragma once

#include <cstddef>

namespace retort::rpc::testing {

// Allocations of at least so many bytes fail, on every thread, for as long as it lives.
class FailingNew {
 public:
  explicit FailingNew(size_t bytes);
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
};

}  // namespace retort::rpc::testing
