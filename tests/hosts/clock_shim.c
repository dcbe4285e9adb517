// The wall clock of a process, CLOCK_AHEAD seconds ahead of the machine's (less than zero: behind).
// Hosts that are namespaces of one machine have one clock; preloaded into the program of one of
// them, this is a host whose clock is wrong (tests/hosts/doctor_test.py).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*Function)(clockid_t, struct timespec*);

int clock_gettime(clockid_t clock, struct timespec* now) {
  const Function next = (Function)dlsym(RTLD_NEXT, "clock_gettime");
  const int result = next(clock, now);
  const char* ahead = getenv("CLOCK_AHEAD");
  if (result == 0 && clock == CLOCK_REALTIME && ahead) now->tv_sec += atol(ahead);
  return result;
}
