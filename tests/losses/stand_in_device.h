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
#include <functional>
#include <string>
#include <vector>

namespace retort::test {

// Registers it at the first call, which must come before the process's first backward pass:
// autograd counts the devices then.
at::Device stand_in_device();

// Several are there where the environment has STAND_IN_DEVICES. A process computes on one of them:
// the first, or that of its last call of use_stand_in_device, which comes before its first tensor.
int64_t stand_in_devices();
void use_stand_in_device(int64_t index);
// The device that the calling thread has made its own by LibTorch; -1 if it did not. Operators do
// not look at it.
int64_t stand_in_device_of_thread();

// How many operators it has computed in this process: code that should have run there did.
int64_t stand_in_operators();
// How many tensors of it were copied to the host in this process, other than by operators: code
// that should have left them there did not.
int64_t stand_in_copies_to_host();

// Where the host waits for the device in this process, all threads together, while this lives: one
// at a time. A real device would have to finish all that was queued before. Counted are copies to
// the host, and operators whose result the host must know, at least its shape: item(), equal(),
// nonzero(), masked_select(), unique(), bincount(), indexing with a mask.
class RecordedReads {
 public:
  RecordedReads();
  ~RecordedReads();
  RecordedReads(const RecordedReads&) = delete;
  RecordedReads& operator=(const RecordedReads&) = delete;

  // Those since the last call, in their order: "copy Double[3]", "item Float[]".
  std::vector<std::string> take();
  // Copies of host tensors to the device since the last call, other than by operators: "Byte[96]";
  // "waits Long[12]" of one that the host would wait for, because it was not asked to be queued
  // only, or because the memory is not pinned.
  std::vector<std::string> take_copies_to_device();
};

// The blocks of the device's memory that are asked for in this process while this lives: one at a
// time.
class RecordedBlocks {
 public:
  RecordedBlocks();
  ~RecordedBlocks();
  RecordedBlocks(const RecordedBlocks&) = delete;
  RecordedBlocks& operator=(const RecordedBlocks&) = delete;

  int64_t of_at_least(size_t bytes) const;
};

// The most that its blocks took at one time in this process.
int64_t stand_in_peak_bytes();

// Blocks of pinned host memory that were asked for, and calls that recorded a stream's use of a
// tensor of the device.
int64_t stand_in_pinned_blocks();
int64_t stand_in_recorded_uses();

// What the device's own copy engine would do: neither counts as a copy of LibTorch. `there` lies in
// memory of the device. Any thread.
void read_stand_in(void* host, const void* there, size_t bytes);
void write_stand_in(void* there, const void* host, size_t bytes);

// Runs it while the host can read and write all memory of the device: an emulated kernel, of which
// nobody knows what it will use. Any thread.
void with_open_stand_in(const std::function<void()>& run);

}  // namespace retort::test
