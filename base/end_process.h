// The end of a program whose work is done.
#pragma once

namespace retort {

// Ends this process with `exit_code`, without the destructors of static objects: LibTorch's take
// each operator out of its tables again, which is a third of what a process costs that does little
// else. What stands in the buffers of the standard streams and of C's files is written first.
// Objects of functions that have not returned are not destroyed either. Under a sanitizer, which
// reports at the end, it is std::exit.
[[noreturn]] void end_process(int exit_code);

}  // namespace retort
