// The wall clock of a process, other than the machine's by seconds that the environment names.
// Hosts that are namespaces of one machine have one clock; preloaded into the program of one of
// them, this is a host whose clock is wrong (tests/hosts/doctor_test.py), or is set while a run
// goes on (tests/faults/clock.py).
//
//   CLOCK_AHEAD  seconds, added to every reading
//   CLOCK_FILE   two int64: seconds added from now on by whoever reads the clock, and by those
//                processes alone that start from now on
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*ClockFunction)(clockid_t, struct timespec*);

static const volatile int64_t* file_seconds = NULL;
static int64_t own_seconds = 0;

__attribute__((constructor)) static void read_environment(void) {
  const char* ahead = getenv("CLOCK_AHEAD");
  if (ahead) own_seconds = atol(ahead);

  const char* path = getenv("CLOCK_FILE");
  const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) return;
  file_seconds = mapped;
  own_seconds += file_seconds[1];
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const ClockFunction next = (ClockFunction)dlsym(RTLD_NEXT, "clock_gettime");
  const int result = next(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += own_seconds + (file_seconds ? file_seconds[0] : 0);
  return result;
}

// What does not pass clock_gettime inside the C library.
int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
