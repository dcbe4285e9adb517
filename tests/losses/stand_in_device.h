// A device without hardware, on which device-generic code can be run and compared: LibTorch's
// PrivateUse1, whose operators compute on copies in host memory. What a real device would punish,
// it does: its memory cannot be read or written by the host (a program that uses such a pointer
// dies of SIGSEGV), and an operator whose tensors are on several devices throws, but for CPU
// tensors without dimensions. What a real device has of its own (streams, rounding, operators that
// are missing there) it does not show.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::test {

// Registers it at the first call, which must come before the process's first backward pass:
// autograd counts the devices then.
at::Device stand_in_device();

// How many operators it has computed in this process: code that should have run there did.
int64_t stand_in_operators();

}  // namespace retort::test
