// The first process of a container, where that is `retort join`.
#pragma once

namespace retort::launch {

// Where this process is the first of its container (PID 1) it stays that, and a child of it goes on
// from here: the kernel hands the first process every orphan there, which only it can reap, and
// gives it no signal that it does not handle. It passes SIGINT, SIGTERM and SIGHUP on, reaps what
// ends, and ends as its child does: with its exit code, or 128 and the signal that killed it.
// Everywhere else nothing.
//
// Call it before threads start, with those signals held (hold_signals()).
void leave_first_process();

}  // namespace retort::launch
