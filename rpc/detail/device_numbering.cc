#include "rpc/detail/device_numbering.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/process_name.h"
#include "base/sizes.h"

namespace retort::rpc::detail {
namespace {

bool sees(const SeenDevices& process, const std::string& id) {
  return std::ranges::find(process.ids, id) != process.ids.end();
}

int64_t index_of(const SeenDevices& process, const std::string& id) {
  return std::ranges::find(process.ids, id) - process.ids.begin();
}

// How many of the devices that both see stand before this one.
int64_t place_among_common(const SeenDevices& process, const SeenDevices& other,
                           const std::string& id) {
  return std::count_if(process.ids.begin(), process.ids.begin() + index_of(process, id),
                       [&](const std::string& before) { return sees(other, before); });
}

std::string device_text(const SeenDevices& process, int64_t index) {
  return std::to_string(index) + " of " + process.process + " (" + process.ids[to_size(index)] +
         ")";
}

// "rpc.device_maps.teacher", as the agents of this process have it.
std::string key_of(const SeenDevices& there) { return "rpc.device_maps." + role_of(there.process); }

void check_exists(const SeenDevices& process, int64_t index, const SeenDevices& there) {
  if (index < std::ssize(process.ids)) return;
  throw Error(ErrorCode::kInvalidArgument,
              key_of(there) + " names device " + std::to_string(index) + " of " + process.process +
                  ", which sees " + std::to_string(process.ids.size()) +
                  " devices for it (indices count from 0, after CUDA_VISIBLE_DEVICES)")
      .with("process", process.process)
      .with("device", index);
}

// The device of an entry that the two number differently.
std::optional<std::string> turned_device(const SeenDevices& here, int64_t index,
                                         const SeenDevices& there, int64_t index_there) {
  for (const std::string& id : {here.ids[to_size(index)], there.ids[to_size(index_there)]})
    if (sees(here, id) && sees(there, id) &&
        place_among_common(here, there, id) != place_among_common(there, here, id))
      return id;
  return std::nullopt;
}

}  // namespace

void check_numbering(const std::map<std::string, int64_t>& map, const SeenDevices& here,
                     const SeenDevices& there) {
  for (const auto& [key, index_there] : map) {
    const int64_t index = std::stoll(key);
    check_exists(here, index, there);
    check_exists(there, index_there, there);
    const std::optional<std::string> turned = turned_device(here, index, there, index_there);
    if (!turned) continue;
    throw Error(ErrorCode::kInvalidArgument,
                key_of(there) + " joins device " + device_text(here, index) + " with device " +
                    device_text(there, index_there) +
                    ", but the two number the devices that both see in another order: " + *turned +
                    " is " + std::to_string(index_of(here, *turned)) + " for " + here.process +
                    " and " + std::to_string(index_of(there, *turned)) + " for " + there.process +
                    "; give both roles the same CUDA_VISIBLE_DEVICES, or each its own part of it "
                    "in the same order");
  }
}

std::string map_text(const std::map<std::string, int64_t>& map, const SeenDevices& here,
                     const SeenDevices& there) {
  std::string text;
  for (const auto& [key, index_there] : map)
    text += (text.empty() ? "" : ", ") + device_text(here, std::stoll(key)) + " is " +
            device_text(there, index_there);
  return text;
}

}  // namespace retort::rpc::detail
