// Whole runs in which every role computes on a device, as far as that can be seen without one: on
// the stand-in, which the program opens as a module in each role's process, against the numbers
// that PyTorch and TRL have for the same recipe and against the same run on the CPU. What reads the
// device's memory from the host ends its process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/recipes/golden_support.h"
#include "tests/recipes/on_policy_support.h"

namespace retort::test {
namespace {

// Processes that this one starts find the stand-in where they look for CUDA's module.
class StandInModule {
 public:
  StandInModule() {
    const fs::path tests = fs::read_symlink("/proc/self/exe").parent_path();
    const fs::path module = tests / "libretort_stand_in.so";
    EXPECT_TRUE(fs::exists(module)) << module;
    ::setenv("RETORT_CUDA_MODULE", module.c_str(), 1);
  }
  ~StandInModule() { ::unsetenv("RETORT_CUDA_MODULE"); }
};

struct DeviceCase {
  std::string golden, changes;  // files of goldens/
  std::string name;             // of the case there
  std::vector<std::string> roles;
  // Those whose tensors stay on devices, as `rpc.device_maps` names them: empty, all is copied.
  std::string maps;
  std::vector<std::string> metrics;
};

std::string name_of(const testing::TestParamInfo<DeviceCase>& info) {
  return info.param.golden + "_" + info.param.name + (info.param.maps.empty() ? "" : "_mapped");
}

// The recipe's text, which goldens of sft and distill do not hold.
std::string recipe_of(const DeviceCase& c, const nlohmann::json& golden) {
  if (golden.contains("recipe")) return golden.at("recipe");
  std::string text =
      "recipe: distill\noutput_dir: $RUN\nseed: 3\nroles:\n"
      "  student: {model: $GOLDENS/qwen3, world: {dp: 1, threads: 1}}\n"
      "  teacher: {model: $GOLDENS/teacher, world: {dp: 1, threads: 1}}\n"
      "data: {train: [{path: $GOLDENS/rows.jsonl}], max_length: 64, packing: false, "
      "shuffle: false}\n"
      "train: {max_steps: 5, per_device_train_batch_size: 2, gradient_accumulation_steps: 2, "
      "learning_rate: 1.0e-3, lr_scheduler_type: constant, save_steps: 0}\n"
      "distill:\n  teachers: [{role: teacher}]\n";
  for (const auto& [key, value] : golden.at("distill").items())
    text += "  " + key + ": " + value.dump() + "\n";
  return text;
}

std::vector<double> golden_metric(const nlohmann::json& golden, const std::string& metric) {
  static const std::map<std::string, std::string> names{
      {"loss", "losses"}, {"grad_norm", "grad_norms"}, {"kd_loss", "kd"}, {"ce_loss", "ce"}};
  const bool other = !golden.contains(metric);
  return golden.at(other ? names.at(metric) : metric).get<std::vector<double>>();
}

// Each role says in its log where it computes.
void expect_on_stand_in(const fs::path& run, const std::vector<std::string>& roles) {
  for (const std::string& role : roles) {
    const std::string log = read_file(run / "logs" / (role + "-0.log"));
    EXPECT_NE(log.find("computes on stand_in:0"), std::string::npos) << role << ":\n" << log;
  }
}

// The environment's, while this lives, and that of the processes that are started.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// Which device each process of a run with a student and two replicas of a teacher computes on, as
// their logs say, and those logs.
struct Whereabouts {
  std::string student, teachers, logs;
};

Whereabouts where(const fs::path& folder, const char* devices,
                  const std::vector<std::string>& more = {}) {
  const StandInModule module;
  const Setting count("STAND_IN_DEVICES", devices);
  const DeviceCase c{.golden = "expected",
                     .changes = "changes",
                     .name = "jsd_topk_bucket",
                     .roles = {},
                     .maps = {},
                     .metrics = {}};
  std::vector<std::string> settings{"roles.student.world.device=cuda",
                                    "roles.teacher.world.device=cuda", "roles.teacher.world.dp=2"};
  settings.insert(settings.end(), more.begin(), more.end());
  const fs::path run =
      run_recipe_text(folder, recipe_of(c, golden_cases(c.golden).at(c.name)), settings);

  Whereabouts found;
  const auto device_of = [&](const std::string& process) -> std::string {
    const std::string log = read_file(run / "logs" / (process + ".log"));
    const std::string before = "computes on stand_in:";
    const size_t at = log.find(before);
    found.logs += log;
    return at == std::string::npos ? "-" : log.substr(at + before.size(), 1);
  };
  found.student = device_of("student-0");
  found.teachers = device_of("teacher-0") + device_of("teacher-1");
  return found;
}

TEST(DevicesOfRoles, EachRankHasItsOwn) {
  const TemporaryFolder folder;
  const Whereabouts found = where(folder / "free", "3");
  EXPECT_EQ(found.student, "0") << found.logs;
  EXPECT_EQ(found.teachers, "12") << found.logs;
  EXPECT_EQ(found.logs.find(" shares stand_in"), std::string::npos) << found.logs;
}

TEST(DevicesOfRoles, AreThoseThatTheRecipeNames) {
  const TemporaryFolder folder;
  const Whereabouts found = where(folder / "named", "3", {"roles.student.devices=[2]"});
  EXPECT_EQ(found.student, "2") << found.logs;
  EXPECT_EQ(found.teachers, "01") << found.logs;
}

TEST(DevicesOfRoles, AreSharedWithAWarningWhereThereAreFewer) {
  const TemporaryFolder folder;
  const Whereabouts found = where(folder / "few", "2");
  EXPECT_EQ(found.student, "0") << found.logs;
  EXPECT_EQ(found.teachers, "10") << found.logs;
  EXPECT_NE(found.logs.find("student shares stand_in:0 with teacher"), std::string::npos)
      << found.logs;
}

class DeviceRun : public testing::TestWithParam<DeviceCase> {};

TEST_P(DeviceRun, TrainsAsOnTheCpu) {
  const DeviceCase& c = GetParam();
  const nlohmann::json golden = golden_cases(c.golden).at(c.name);
  const std::string recipe = recipe_of(c, golden);
  const StandInModule module;
  TemporaryFolder folder;

  std::vector<std::string> settings;
  for (const std::string& role : c.roles)
    settings.push_back("roles." + role + ".world.device=cuda");
  if (!c.maps.empty()) settings.push_back("rpc.device_maps=" + c.maps);
  const fs::path here = run_recipe_text(folder / "cpu", recipe);
  const fs::path there = run_recipe_text(folder / "device", recipe, settings);
  ASSERT_FALSE(HasFailure());

  // PyTorch's numbers within the tolerance of the CPU, the CPU's own far closer.
  expect_on_stand_in(there, c.roles);
  for (const std::string& metric : c.metrics) {
    expect_close(column(there, metric), golden_metric(golden, metric), metric, 1e-6);
    const std::vector<double> got = column(there, metric), want = column(here, metric);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-6 * std::max(1.0, std::abs(want[i]))) << metric << " " << i;
  }
  if (golden.contains("samples")) expect_same_samples(there, here);
  expect_same_parameters(there, "qwen3", c.changes, c.name);
  EXPECT_LT(relative_difference(there / "final", here / "final"), 1e-6);
}

const std::vector<std::string> kDistill{"loss", "grad_norm", "kd_loss", "ce_loss"};
const std::vector<std::string> kPreference{
    "loss",         "grad_norm",     "rewards/chosen", "rewards/rejected", "rewards/margins",
    "logps/chosen", "logps/rejected"};
const std::vector<std::string> kTeacher{"student", "teacher"};

INSTANTIATE_TEST_SUITE_P(
    Cases, DeviceRun,
    testing::Values(DeviceCase{"expected", "changes", "forward_hidden_mix", kTeacher,
                               "{teacher: {0: 0}}", kDistill},
                    DeviceCase{"expected", "changes", "jsd_full", kTeacher, "{teacher: {0: 0}}",
                               kDistill},
                    DeviceCase{"expected", "changes", "jsd_topk_bucket", kTeacher, "", kDistill},
                    DeviceCase{"preference",
                               "preference_changes",
                               "sigmoid",
                               {"student", "reference"},
                               "",
                               kPreference},
                    DeviceCase{"kto",
                               "kto_changes",
                               "kto",
                               {"student", "reference"},
                               "",
                               {"loss", "grad_norm", "rewards/chosen", "rewards/rejected"}},
                    DeviceCase{"policy",
                               "policy_changes",
                               "reference",
                               {"student", "generator", "reference"},
                               "",
                               {"loss", "grad_norm", "kl"}},
                    DeviceCase{"policy",
                               "policy_changes",
                               "reference",
                               {"student", "generator", "reference"},
                               "{generator: {0: 0}}",
                               {"loss", "grad_norm", "kl"}}),
    name_of);

}  // namespace
}  // namespace retort::test
