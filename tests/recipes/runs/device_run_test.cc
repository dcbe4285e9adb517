// Whole runs in which every role computes on a device, as far as that can be seen without one: on
// the stand-in, which the program opens as a module in each role's process, against the numbers
// that PyTorch and TRL have for the same recipe and against the same run on the CPU. What reads the
// device's memory from the host ends its process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/device_bfloat16.h"
#include "tests/recipes/run_support/device_cases.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/stand_in_setting.h"

namespace retort::test {
namespace {

// Nothing falls back, neither to operators nor to the CPU.
TEST(DeviceOfARun, ACardWithoutKernelsIsRefusedByName) {
  const StandInModule module;
  const Setting capability("STAND_IN_CAPABILITY", "75");
  const TemporaryFolder folder;
  const CommandResult result = retort(
      {"launch", write_recipe(folder.path(), {}).string(), "roles.student.world.device=cuda"});
  EXPECT_EQ(result.exit_code, 3) << result.output;
  for (const char* part : {"compute capability 7.5", "sm_80, sm_90, PTX of compute_90"})
    EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
}

class DeviceRun : public testing::TestWithParam<DeviceCase> {};

TEST_P(DeviceRun, TrainsAsOnTheCpu) {
  const StandInModule module;
  expect_trains_as_on_the_cpu(GetParam(), "stand_in:0", {});
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceRun, testing::ValuesIn(device_cases()),
                         [](const auto& info) { return name_of(info.param); });

class DeviceBfloat16Run : public testing::TestWithParam<Bfloat16Case> {};

TEST_P(DeviceBfloat16Run, FollowsFloat32) {
  const StandInModule module;
  expect_bfloat16_follows_on_device(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceBfloat16Run, testing::ValuesIn(bfloat16_cases()),
                         [](const auto& info) { return info.param.name; });

// What a golden has no numbers for: ids that the student names, and draws of a teacher.
struct NamedIds {
  std::string name;
  std::map<std::string, std::string> distill;
};

void PrintTo(const NamedIds& c, std::ostream* out) { *out << c.name; }

class DeviceDistillRun : public testing::TestWithParam<NamedIds> {};

TEST_P(DeviceDistillRun, TrainsAsOnTheCpu) {
  const StandInModule module;
  const TemporaryFolder folder;
  const GoldenRecipe recipe{.teacher = "teacher", .steps = 3, .distill = GetParam().distill};
  const auto run = [&](const std::string& name, const std::vector<std::string>& settings) {
    std::vector<std::string> arguments{"launch", write_recipe(folder / name, recipe).string()};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const CommandResult result = retort(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return folder / name / "run";
  };
  const fs::path here = run("cpu", {});
  const fs::path there =
      run("device", {"roles.student.world.device=cuda", "roles.teacher.world.device=cuda"});
  ASSERT_FALSE(HasFailure());

  for (const char* metric : {"loss", "kd_loss", "grad_norm"}) {
    const std::vector<double> got = column(there, metric), want = column(here, metric);
    ASSERT_EQ(got.size(), want.size()) << metric;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-5 * std::max(1.0, std::abs(want[i]))) << metric << " " << i;
  }
  EXPECT_LE(relative_difference(there / "final", here / "final"), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceDistillRun,
                         testing::Values(NamedIds{"student",
                                                  {{"payload", "topk"},
                                                   {"support", "student"},
                                                   {"loss_top_k", "5"},
                                                   {"loss_type", "reverse_kl"}}},
                                         NamedIds{"union",
                                                  {{"payload", "topk"},
                                                   {"support", "union"},
                                                   {"loss_top_k", "5"},
                                                   {"loss_type", "reverse_kl"}}},
                                         NamedIds{"sampled",
                                                  {{"payload", "sampled"}, {"num_samples", "5"}}}),
                         [](const auto& info) { return info.param.name; });

// An adapter beside PEFT's own, by itself and with its model as the reference.
class DeviceLoraRun : public testing::TestWithParam<const char*> {};

TEST_P(DeviceLoraRun, MatchesPeft) {
  const StandInModule module;
  const nlohmann::json golden = golden_cases("lora").at(GetParam());
  const TemporaryFolder folder;
  const fs::path run =
      run_recipe_text(folder.path(), golden.at("recipe"), {"roles.student.world.device=cuda"});
  ASSERT_FALSE(HasFailure());
  EXPECT_NE(read_file(run / "logs/student-0.log").find("computes on stand_in:0"),
            std::string::npos);

  expect_columns(run, golden, {"loss", "grad_norm"}, 1e-6);
  constexpr const char* kFile = "adapter_model.safetensors";
  const ParameterError error = tensor_error(run / "final" / kFile, goldens() / "lora_qwen3" / kFile,
                                            "lora_changes", GetParam());
  EXPECT_LE(error.relative, 1e-5);
  EXPECT_LE(error.largest, 5e-5);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceLoraRun, testing::Values("sft_qwen3", "dpo_qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace retort::test
