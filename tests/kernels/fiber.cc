#include "tests/kernels/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "base/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace retort::emulator {
namespace {

constexpr size_t kPage = 4096;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 256 << 10;  // its frames are larger
#else
constexpr size_t kStackBytes = 64 << 10;

// The sanitizer's functions, which are there only with it.
void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
void __asan_unpoison_memory_region(const void*, size_t) {}
#endif

}  // namespace

// A page that cannot be written lies below the stack: too deep a recursion is a SIGSEGV.
Fiber::Fiber() {
  void* memory = ::mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || ::mprotect(memory, kPage, PROT_NONE) != 0) throw std::bad_alloc();
  stack_ = static_cast<char*>(memory) + kPage;
}

Fiber::~Fiber() {
  __asan_unpoison_memory_region(stack_, kStackBytes);
  ::munmap(stack_ - kPage, kPage + kStackBytes);
}

void Fiber::start(const std::function<void()>& body) {
  if (!ended_) __asan_unpoison_memory_region(stack_, kStackBytes);
  own_fake_stack_ = nullptr;
  body_ = &body;
  ended_ = false;
  RETORT_CHECK(::getcontext(&own_) == 0) << "getcontext";
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  // makecontext passes numbers of 32 bits.
  const auto address = reinterpret_cast<uintptr_t>(this);
  ::makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
                static_cast<unsigned>(uint64_t{address} >> 32), static_cast<unsigned>(address));
}

void Fiber::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(uint64_t{high} << 32 | low));
  __sanitizer_finish_switch_fiber(nullptr, &self->resumer_stack_, &self->resumer_stack_bytes_);
  (*self->body_)();
  self->ended_ = true;
  // Without a place for it, the sanitizer gives the fake stack back.
  __sanitizer_start_switch_fiber(nullptr, self->resumer_stack_, self->resumer_stack_bytes_);
  ::setcontext(&self->resumer_);
  RETORT_CHECK(false) << "setcontext";
}

void Fiber::resume() {
  RETORT_CHECK(!ended_) << "the fiber has ended";
  __sanitizer_start_switch_fiber(&resumer_fake_stack_, stack_, kStackBytes);
  RETORT_CHECK(::swapcontext(&resumer_, &own_) == 0) << "swapcontext";
  __sanitizer_finish_switch_fiber(resumer_fake_stack_, nullptr, nullptr);
}

void Fiber::suspend() {
  __sanitizer_start_switch_fiber(&own_fake_stack_, resumer_stack_, resumer_stack_bytes_);
  RETORT_CHECK(::swapcontext(&own_, &resumer_) == 0) << "swapcontext";
  __sanitizer_finish_switch_fiber(own_fake_stack_, &resumer_stack_, &resumer_stack_bytes_);
}

}  // namespace retort::emulator
