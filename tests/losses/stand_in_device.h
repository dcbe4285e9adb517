// A device without hardware, on which device-generic code can be run and compared: LibTorch's
// PrivateUse1, whose operators compute on copies in host memory. What a real device would punish,
// it does: its memory cannot be read or written by the host (a program that uses such a pointer
// dies of SIGSEGV), and an operator whose tensors are on several devices throws, but for CPU
// tensors without dimensions. What a real device has of its own (streams, rounding, operators that
// are missing there) it does not show.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace retort::test {

// Registers it at the first call, which must come before the process's first backward pass:
// autograd counts the devices then.
at::Device stand_in_device();

// How many operators it has computed in this process: code that should have run there did.
int64_t stand_in_operators();
// How many tensors of it were copied to the host in this process, other than by operators: code
// that should have left them there did not.
int64_t stand_in_copies_to_host();
// Blocks of pinned host memory that were asked for, and calls that recorded a stream's use of a
// tensor of the device.
int64_t stand_in_pinned_blocks();
int64_t stand_in_recorded_uses();

// What the device's own copy engine would do: neither counts as a copy of LibTorch. `there` lies in
// memory of the device. Any thread.
void read_stand_in(void* host, const void* there, size_t bytes);
void write_stand_in(void* there, const void* host, size_t bytes);

}  // namespace retort::test
