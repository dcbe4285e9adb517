// The functions of the system and of the C++ library that a simulation replaces, in this whole
// binary. Without a Scheduler each does what it always does.
//
// Time:    std::chrono::steady_clock::now(), nanosleep().
// Timers:  Asio's wait in epoll_wait() for want of a timerfd, and so ask for their time; nobody
//          waits there, and there is nothing to poll.
// Threads: pthread_create(), pthread_join(), condition variables and mutexes.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>

#include "base/error.h"
#include "tests/rpc/simulation/scheduler.h"

using retort::rpc::simulation::Clock;
using retort::rpc::simulation::Scheduler;

namespace {

// Libraries may have threads of their own, which a simulation leaves alone.
thread_local const bool is_main_thread = getpid() == static_cast<pid_t>(syscall(SYS_gettid));

Scheduler* simulation() {
  Scheduler* const scheduler = Scheduler::current();
  return scheduler != nullptr && is_main_thread ? scheduler : nullptr;
}
Scheduler* on_simulated_thread() {
  Scheduler* const scheduler = simulation();
  return scheduler != nullptr && scheduler->on_thread() ? scheduler : nullptr;
}

// `version`: some of these functions exist twice, for programs of other times.
template <class Function>
Function* real(Function*, const char* name, const char* version = nullptr) {
  void* const symbol = version ? dlvsym(RTLD_NEXT, name, version) : dlsym(RTLD_NEXT, name);
  RETORT_CHECK(symbol) << name;
  return reinterpret_cast<Function*>(symbol);
}

Clock::time_point time_of(const timespec& time) {
  return Clock::time_point(std::chrono::seconds(time.tv_sec) +
                           std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace

namespace std::chrono {

steady_clock::time_point steady_clock::now() noexcept {
  if (const Scheduler* const scheduler = simulation()) return scheduler->now();
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time_of(time);
}

}  // namespace std::chrono

extern "C" {

int nanosleep(const timespec* time, timespec* left) {
  Scheduler* const scheduler = on_simulated_thread();
  if (scheduler == nullptr) return static_cast<int>(syscall(SYS_nanosleep, time, left));
  scheduler->sleep(std::chrono::ceil<std::chrono::milliseconds>(time_of(*time).time_since_epoch()));
  return 0;
}

int timerfd_create(int clock, int flags) noexcept {
  if (simulation() == nullptr) return static_cast<int>(syscall(SYS_timerfd_create, clock, flags));
  errno = ENOSYS;
  return -1;
}

int epoll_wait(int fd, epoll_event* events, int num_events, int timeout_ms) {
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr)
    return static_cast<int>(
        syscall(SYS_epoll_pwait, fd, events, num_events, timeout_ms, nullptr, 0));
  scheduler->note_timeout(timeout_ms);
  return 0;
}

int epoll_ctl(int fd, int operation, int target, epoll_event* event) noexcept {
  if (simulation() != nullptr) return 0;
  return static_cast<int>(syscall(SYS_epoll_ctl, fd, operation, target, event));
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static const auto kReal = real(&pthread_create, "pthread_create");
  Scheduler* const scheduler = on_simulated_thread();
  if (scheduler == nullptr) return kReal(thread, attributes, start, argument);
  *thread = static_cast<pthread_t>(scheduler->create([=] { start(argument); }));
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  static const auto kReal = real(&pthread_join, "pthread_join");
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr || !scheduler->made(thread)) return kReal(thread, result);
  scheduler->join(thread);
  return 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto kReal = real(&pthread_mutex_lock, "pthread_mutex_lock");
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr) return kReal(mutex);
  while (pthread_mutex_trylock(mutex) == EBUSY)
    scheduler->wait(mutex, std::nullopt);
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto kReal = real(&pthread_mutex_unlock, "pthread_mutex_unlock");
  const int result = kReal(mutex);
  if (Scheduler* const scheduler = simulation()) scheduler->wake(mutex, false);
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto kReal = real(&pthread_cond_wait, "pthread_cond_wait", "GLIBC_2.3.2");
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr) return kReal(condition, mutex);
  pthread_mutex_unlock(mutex);
  scheduler->wait(condition, std::nullopt);
  return pthread_mutex_lock(mutex);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static const auto kReal = real(&pthread_cond_clockwait, "pthread_cond_clockwait");
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr) return kReal(condition, mutex, clock, until);
  RETORT_CHECK(clock == CLOCK_MONOTONIC) << "a wait by a clock that is not simulated";
  pthread_mutex_unlock(mutex);
  const bool woken = scheduler->wait(condition, time_of(*until));
  pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static const auto kReal = real(&pthread_cond_signal, "pthread_cond_signal", "GLIBC_2.3.2");
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr) return kReal(condition);
  scheduler->wake(condition, false);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static const auto kReal = real(&pthread_cond_broadcast, "pthread_cond_broadcast", "GLIBC_2.3.2");
  Scheduler* const scheduler = simulation();
  if (scheduler == nullptr) return kReal(condition);
  scheduler->wake(condition, true);
  return 0;
}

}  // extern "C"
