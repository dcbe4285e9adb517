// Whether two processes mean the same by the indices of a device map. Each counts the devices that
// it sees, so CUDA_VISIBLE_DEVICES of one of them can turn a map round: every tensor still arrives,
// on a device that nobody meant, where the memory may be another role's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace retort::rpc::detail {

// The devices that a process sees, by index: DeviceTransfer::device_ids().
struct SeenDevices {
  std::string process;  // "student/0"
  std::vector<std::string> ids;
};

// `map`: index here -> index there, of RpcOptions::device_maps for the peer's role. Throws
// kInvalidArgument, which names both processes and devices,
//   - where one of them does not have a device that an entry names;
//   - where an entry names a device that both see, and the devices that both see stand in another
//     order here than there.
// A process that sees fewer devices than the other numbers them by itself, so the order counts and
// not the index. Devices of two hosts have nothing in common and are not compared.
void check_numbering(const std::map<std::string, int64_t>& map, const SeenDevices& here,
                     const SeenDevices& there);

// "0 of student/0 (GPU-1) is 1 of teacher/0 (GPU-2)", an entry after the other, for the log. After
// the check.
std::string map_text(const std::map<std::string, int64_t>& map, const SeenDevices& here,
                     const SeenDevices& there);

}  // namespace retort::rpc::detail
