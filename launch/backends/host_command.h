// retort host: starts and watches the processes of a run on this host for a launcher on another
// one, which runs it by ssh and speaks with it over its standard input and output.
#pragma once

namespace retort::launch {

// Until the launcher says that the run has ended, or is lost: it closes the connection, or is
// silent for rpc.peer_timeout. Then the processes here are asked to end as a launcher would ask
// them, the driving ones first, which save, and the serving ones once nobody drives the run; what
// is left beyond the time that they have is killed.
//
// Nothing that it started, and nothing that those left behind, outlives it, unless it is killed
// itself: then the processes miss their launcher (launcher_link.h) and end by themselves.
int run_host();

}  // namespace retort::launch
