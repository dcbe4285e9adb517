// Checks that the parameters of one object lie on one device.
#pragma once

#include "base/error.h"
#include "parallel/parameter.h"

namespace retort::parallel::detail {

// Throws kInvalidArgument unless the parameter has memory, on the CPU or a device, and on the same
// one as `first`, the first of the list.
inline void check_device(const NamedParameter& p, const NamedParameter& first) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::kInvalidArgument, "parameter '" + p.name + "' " + problem);
  };
  if (!p.value.defined()) refuse("is not defined");
  const at::Device device = p.value.device();
  if (device != first.value.device())
    refuse("is on " + device.str() + " and '" + first.name + "' on " + first.value.device().str() +
           ", expected all on one device");
  if (device.is_meta()) refuse("is on " + device.str() + ", expected a device with memory");
}

}  // namespace retort::parallel::detail
