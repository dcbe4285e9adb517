// Lets a relay stand between two processes of a run (tests/faults/relay.py).
//
// The proof of a connection compares the addresses that both ends see, so that nobody can stand in
// between. The relay listens at 127.0.0.2 in place of a process that listens at 127.0.0.1, and
// dials it from 127.0.0.3, each time with the port of the connection that it relays. Preloaded into
// the processes of a run, this names 127.0.0.1 for either: what a connection without a relay would
// say.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

typedef int (*Function)(int, struct sockaddr*, socklen_t*);

int getpeername(int fd, struct sockaddr* restrict address, socklen_t* restrict length) {
  const Function next = (Function)dlsym(RTLD_NEXT, "getpeername");
  const int result = next(fd, address, length);
  if (result != 0 || address->sa_family != AF_INET) return result;

  struct sockaddr_in* peer = (struct sockaddr_in*)address;
  const in_addr_t host = ntohl(peer->sin_addr.s_addr);
  if (host == 0x7f000002 || host == 0x7f000003) peer->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return 0;
}
