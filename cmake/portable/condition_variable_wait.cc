// GCC 12's libstdc++ gave std::condition_variable::wait(lock) the symbol version GLIBCXX_3.4.30, so
// a program that calls it does not start with the libstdc++ of GCC 11, which some systems with
// glibc 2.34 have. The linker's --wrap sends these calls here; the body is libstdc++'s own.
#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* self, std::unique_lock<std::mutex>* lock) {
  ::pthread_cond_wait(self->native_handle(), lock->mutex()->native_handle());
}
