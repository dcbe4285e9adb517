// Our kernels alone on a device, beside a copy: a JSON line for each (tests/kernels/sweep/sweep.h
// says what stands there).
//   kernels_bench                  in the shapes that the program launches
//   kernels_bench --sweep          and in 3 to 7 others each, for kernels/launch_shapes.cc
//   kernels_bench --only adamw,checksum
// RETORT_CUDA_MODULE names another module than the one beside the program's folder; with the
// stand-in of the tests and --tiny the emulated kernels run to their end, and times say nothing.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "parallel/device_module.h"
#include "parallel/world.h"
#include "tests/kernels/sweep/sweep.h"

namespace retort::bench {
namespace {

struct Options {
  bool sweep = false;
  bool tiny = false;
  std::vector<std::string> only;
};

int run(const Options& o) {
  parallel::Layout layout;
  layout.device = parallel::Device::kCuda;
  const parallel::World world(
      {.role = "student", .layout = layout, .device_module = parallel::DeviceModule::load()});
  kernels::sweep::SweepOptions options{
      .device = world.device(), .all_shapes = o.sweep, .only = o.only};
  if (o.tiny) {
    options.sizes = kernels::sweep::SweepSizes::tiny();
    options.rounds = 1;
    options.launches = 1;
    options.overwriting = 1;
  }
  kernels::sweep::sweep_kernels(options, [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace
}  // namespace retort::bench

int main(int argc, char** argv) {
  retort::bench::Options options;
  CLI::App app("Our kernels alone on a device, beside a copy");
  app.add_flag("--sweep", options.sweep, "each kernel in several launch shapes");
  app.add_flag("--tiny", options.tiny, "sizes that only show that everything runs");
  app.add_option("--only", options.only, "names of kernels, as the lines have them")
      ->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    return retort::bench::run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
