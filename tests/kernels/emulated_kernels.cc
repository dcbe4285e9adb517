#include "tests/kernels/emulated_kernels.h"

#include <algorithm>

#include "base/error.h"

namespace retort::emulator {
namespace {

const EmulatedKernel& find(const kernels::Launch& launch) {
  const auto found = emulated_kernels().find(std::string_view(launch.name));
  if (found == emulated_kernels().end())
    throw Error(ErrorCode::kMismatch, "there is no such kernel").with("kernel", launch.name);
  return found->second;
}

void check(const kernels::Launch& launch, const EmulatedKernel& kernel) {
  if (launch.block > kernel.max_threads)
    throw Error(ErrorCode::kInvalidArgument, "more threads than the kernel was compiled for")
        .with("kernel", launch.name)
        .with("threads", launch.block)
        .with("max", kernel.max_threads);

  const std::vector<size_t>& expected = kernel.argument_bytes;
  if (std::ranges::equal(launch.argument_bytes, expected)) return;
  const auto text = [](const auto& sizes) {
    std::string list;
    for (const size_t bytes : sizes)
      list += (list.empty() ? "" : ", ") + std::to_string(bytes);
    return list;
  };
  throw Error(ErrorCode::kMismatch, "the arguments have " + text(launch.argument_bytes) +
                                        " bytes, those of the kernel " + text(expected))
      .with("kernel", launch.name);
}

}  // namespace

EmulatedKernels::EmulatedKernels(uint64_t seed, at::DeviceType type, Around around)
    : emulator_(seed), type_(type), around_(std::move(around)) {}

void EmulatedKernels::launch(const kernels::Launch& launch, const at::Device& device) {
  const EmulatedKernel& kernel = find(launch);
  check(launch, kernel);
  if (launch.is_empty()) return;

  const Dim3 grid{.x = static_cast<unsigned>(launch.grid_x),
                  .y = static_cast<unsigned>(launch.grid_y)};
  const Dim3 block{.x = static_cast<unsigned>(launch.block)};
  const auto run = [&] {
    emulator_.run(launch.name, grid, block, static_cast<size_t>(launch.shared_bytes),
                  [&] { kernel.run(launch.args); });
  };
  around_ ? around_(run) : run();
  ++num_launches_;
}

}  // namespace retort::emulator
