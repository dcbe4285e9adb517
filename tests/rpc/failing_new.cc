#include "tests/rpc/failing_new.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace retort::rpc::testing {
namespace {

// Before any constructor runs: the first allocations of a program look at it.
constinit std::atomic<size_t> fail_from{SIZE_MAX};

bool allocation_fails(size_t bytes) { return bytes >= fail_from.load(std::memory_order_relaxed); }

}  // namespace

FailingNew::FailingNew(size_t bytes) { fail_from = bytes; }
FailingNew::~FailingNew() { fail_from = SIZE_MAX; }

}  // namespace retort::rpc::testing

// The library's other forms are made of these two.
void* operator new(size_t bytes) {
  if (!retort::rpc::testing::allocation_fails(bytes))
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
