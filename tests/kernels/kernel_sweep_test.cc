// kernels_bench with the emulated kernels: each runs in each of its shapes, all of which give the
// results of the one in use, and the lines say what the table has.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"
#include "tests/kernels/emulated_kernels.h"
#include "tests/kernels/sweep/sweep.h"
#include "tests/support/thrown.h"

namespace retort::kernels::sweep {
namespace {

using nlohmann::json;

std::vector<json> lines_of(SweepOptions options) {
  // Memory of the CPU is what the emulated kernels of this process use.
  register_device_kernels(std::make_unique<emulator::EmulatedKernels>(1, at::kCPU));
  options.sizes = SweepSizes::tiny();
  options.rounds = 1;
  options.launches = 1;
  options.overwriting = 1;
  std::vector<json> lines;
  sweep_kernels(options, [&](const std::string& line) { lines.push_back(json::parse(line)); });
  return lines;
}

LaunchShape shape_of(const json& line) {
  return {.threads = line.at("threads"),
          .share = line.at("share"),
          .least = line.at("least"),
          .blocks = line.at("blocks")};
}

TEST(KernelSweep, TriesEveryKernelInSeveralShapes) {
  const std::vector<json> lines = lines_of({});
  ASSERT_FALSE(lines.empty());
  EXPECT_GT(lines.front().at("copy_gb_s").get<double>(), 0);
  EXPECT_EQ(lines.front().at("capability"), 0);

  std::map<std::string, std::vector<json>> by_kernel;
  for (size_t i = 1; i < lines.size(); ++i)
    by_kernel[lines[i].at("kernel")].push_back(lines[i]);
  EXPECT_EQ(by_kernel.size(), kNumShapedKernels);
  for (size_t i = 0; i < kNumShapedKernels; ++i) {
    const auto kernel = static_cast<ShapedKernel>(i);
    const std::vector<json>& rows = by_kernel[std::string(name_of(kernel))];
    SCOPED_TRACE(name_of(kernel));
    EXPECT_GE(rows.size(), 4u);
    EXPECT_LE(rows.size(), 8u);

    std::set<std::string> different;
    for (const json& row : rows) {
      EXPECT_EQ(row.at("right"), true) << row;
      EXPECT_GT(row.at("us").get<double>(), 0) << row;
      EXPECT_GT(row.at("gb_s").get<double>(), 0) << row;
      EXPECT_EQ(row.at("in_use"), shape_of(row) == launch_shape(kernel, 0)) << row;
      different.insert(
          json{row.at("threads"), row.at("share"), row.at("least"), row.at("blocks")}.dump());
    }
    EXPECT_EQ(different.size(), rows.size()) << "a shape is there twice";
  }
}

TEST(KernelSweep, TellsTheShapesInUseOfThoseThatAreAsked) {
  const std::vector<json> lines =
      lines_of({.all_shapes = false, .only = {"adamw", "paged_decode"}});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1].at("kernel"), "adamw");
  EXPECT_EQ(lines[1].at("in_use"), true);
  EXPECT_EQ(lines[2].at("kernel"), "paged_decode");
}

TEST(KernelSweep, RefusesANameThatNoKernelHas) {
  test::expect_refused("no kernel has the name 'adam'; there are ce_rows, ",
                       [] { lines_of({.only = {"adamw", "adam"}}); });
}

// Nothing is measured for a card that is none, so that all have the table's rows.
TEST(LaunchShapes, AreThoseOfAllCardsWhereNoneWasMeasured) {
  EXPECT_EQ(launch_shape(ShapedKernel::kDivergence, 0).threads, 256);
  EXPECT_EQ(launch_shape(ShapedKernel::kDivergence, 75),
            launch_shape(ShapedKernel::kDivergence, 0));
  EXPECT_EQ(name_of(ShapedKernel::kPagedDecodeJoin), "paged_decode_join");

  const LaunchShape endless, few{.blocks = 528};
  EXPECT_EQ(grid_of(0, endless), 0);
  EXPECT_EQ(grid_of(1'000'000, endless), 1'000'000);
  EXPECT_EQ(grid_of(1'000'000, few), 528);
  EXPECT_EQ(grid_of(7, few), 7);
}

// Those whose work is divided by their share.
bool needs_share(ShapedKernel kernel) {
  switch (kernel) {
    case ShapedKernel::kAddRmsNorm:
    case ShapedKernel::kRmsNormBackwardBf16:
    case ShapedKernel::kRmsNormBackwardF32:
    case ShapedKernel::kHeads:
    case ShapedKernel::kHeadsBackward:
    case ShapedKernel::kAdamw:
    case ShapedKernel::kChecksum:
    case ShapedKernel::kPagedDecode: return true;
    default: return false;
  }
}

// What no launch may have, whatever is measured: whole warps, and a share where one is needed.
TEST(LaunchShapes, AreWholeWarps) {
  for (size_t i = 0; i < kNumShapedKernels; ++i)
    for (const int64_t capability : {0, 80, 90, 100, 120}) {
      const LaunchShape& shape = launch_shape(static_cast<ShapedKernel>(i), capability);
      EXPECT_GT(shape.threads, 0) << i;
      EXPECT_EQ(shape.threads % 32, 0) << i;
      EXPECT_LE(shape.threads, 1024) << i;
      EXPECT_EQ(shape.least % 32, 0) << i;
      EXPECT_LE(shape.least, 1024) << i;
      if (needs_share(static_cast<ShapedKernel>(i))) {
        EXPECT_GT(shape.share, 0) << i;
      }
    }
}

}  // namespace
}  // namespace retort::kernels::sweep
