// What a program that this process starts does not get.
#pragma once

namespace retort {

// Has every descriptor from `first` on closed when this process becomes another program: ports,
// connections and locks, whoever opened them and with whatever flags. For a new process between
// fork or vfork and exec: it makes system calls and nothing else.
void close_on_exec_from(unsigned first);

}  // namespace retort
