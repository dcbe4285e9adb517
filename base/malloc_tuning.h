// What the C library does with memory that is freed.
#pragma once

namespace retort {

// Keeps it for the next allocations of this process, up to 1 GiB a piece and 2 GiB at the end of
// the heap, instead of returning it to the system, which has to clear every page before it lends
// it again. For a process that allocates the same again and again: a training step's activations
// cost 2 % of its time that way.
//
// Where the C library takes less, or nothing (an allocator of others), it keeps less: only time is
// lost.
// Threads: any; before others allocate.
void keep_freed_memory();

}  // namespace retort
