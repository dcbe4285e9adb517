#include "tests/recipes/run_support/device_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>

#include "base/file.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// Each role says in its log where it computes.
void expect_computes_on(const std::string& device, const fs::path& run,
                        const std::vector<std::string>& roles) {
  for (const std::string& role : roles) {
    const std::string log = read_file(run / "logs" / (role + "-0.log"));
    EXPECT_NE(log.find("computes on " + device), std::string::npos) << role << ":\n" << log;
  }
}

// A run on the device beside PyTorch's numbers, and beside the same run on the CPU.
void expect_same_run(const DeviceCase& c, const fs::path& there, const fs::path& here,
                     const std::string& device, const DeviceBounds& bounds) {
  const nlohmann::json golden = golden_cases(c.golden).at(c.name);
  expect_computes_on(device, there, c.roles);

  // PyTorch's numbers within the tolerance of the CPU, the CPU's own far closer. Where a value is
  // small, what both are off may add up.
  for (const std::string& metric : c.metrics) {
    expect_close(column(there, metric), golden_metric(golden, metric), metric, 2 * bounds.metrics);
    const std::vector<double> got = column(there, metric), want = column(here, metric);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], bounds.metrics * std::max(1.0, std::abs(want[i])))
          << metric << " " << i;
  }

  // Parameters, gradients and the optimizer's two numbers are there at the same time.
  const auto peaks = column(there, "peak_device_memory");
  ASSERT_FALSE(peaks.empty());
  EXPECT_GT(peaks.back(),
            3 * static_cast<double>(fs::file_size(there / "final/model.safetensors")));

  if (golden.contains("samples")) expect_same_samples(there, here);
  expect_same_parameters(there, c.model, c.changes, c.name);
  const double parameters = relative_difference(there / "final", here / "final");
  EXPECT_LT(parameters, bounds.parameters);
  testing::Test::RecordProperty("parameters_beside_the_cpu", std::to_string(parameters));
}

const std::vector<std::string> kDistill{"loss", "grad_norm", "kd_loss", "ce_loss"};
const std::vector<std::string> kPreference{
    "loss",         "grad_norm",     "rewards/chosen", "rewards/rejected", "rewards/margins",
    "logps/chosen", "logps/rejected"};
const std::vector<std::string> kTeacher{"student", "teacher"};

}  // namespace

std::vector<DeviceCase> device_cases() {
  return {
      // Distillation: hidden states and whole rows over a device map, a top k through the host.
      DeviceCase{
          "expected", "changes", "forward_hidden_mix", kTeacher, {"{teacher: {0: 0}}"}, kDistill},
      DeviceCase{"expected", "changes", "jsd_full", kTeacher, {"{teacher: {0: 0}}"}, kDistill},
      DeviceCase{"expected", "changes", "jsd_topk_bucket", kTeacher, {""}, kDistill},

      // Pairs and single answers beside a reference, and pairs that a reward model learns.
      DeviceCase{"preference",
                 "preference_changes",
                 "sigmoid",
                 {"student", "reference"},
                 {""},
                 kPreference},
      DeviceCase{"kto",
                 "kto_changes",
                 "kto",
                 {"student", "reference"},
                 {""},
                 {"loss", "grad_norm", "rewards/chosen", "rewards/rejected"}},
      DeviceCase{"reward",
                 "reward_changes",
                 "bradley_terry",
                 {"student"},
                 {""},
                 {"loss", "grad_norm", "accuracy", "margin", "mean_reward"},
                 "reward_one"},

      // Samples of a generator, to which weights go through the host or over a device map.
      DeviceCase{"policy",
                 "policy_changes",
                 "reference",
                 {"student", "generator", "reference"},
                 {"", "{generator: {0: 0}}"},
                 {"loss", "grad_norm", "kl"}}};
}

std::string name_of(const DeviceCase& c) { return c.golden + "_" + c.name; }

void PrintTo(const DeviceCase& c, std::ostream* out) { *out << name_of(c); }

std::vector<double> golden_metric(const nlohmann::json& golden, const std::string& metric) {
  static const std::map<std::string, std::string> names{
      {"loss", "losses"}, {"grad_norm", "grad_norms"}, {"kd_loss", "kd"}, {"ce_loss", "ce"}};
  const bool other = !golden.contains(metric);
  return golden.at(other ? names.at(metric) : metric).get<std::vector<double>>();
}

std::string recipe_of(const nlohmann::json& golden) {
  if (golden.contains("recipe")) return golden.at("recipe");
  const bool distills = golden.contains("distill");
  std::string text = distills ? "recipe: distill\n" : "recipe: sft\n";
  text +=
      "output_dir: $RUN\nseed: 3\nroles:\n"
      "  student: {model: $GOLDENS/qwen3, world: {dp: 1, threads: 1}}\n";
  if (distills) text += "  teacher: {model: $GOLDENS/teacher, world: {dp: 1, threads: 1}}\n";
  text +=
      "data: {train: [{path: $GOLDENS/rows.jsonl}], max_length: 64, packing: false, "
      "shuffle: false}\n"
      "train: {max_steps: 5, per_device_train_batch_size: 2, gradient_accumulation_steps: 2, "
      "learning_rate: 1.0e-3, lr_scheduler_type: constant, save_steps: 0}\n";
  if (!distills) return text;
  text += "distill:\n  teachers: [{role: teacher}]\n";
  for (const auto& [key, value] : golden.at("distill").items())
    text += "  " + key + ": " + value.dump() + "\n";
  return text;
}

void expect_trains_as_on_the_cpu(const DeviceCase& c, const std::string& device,
                                 const DeviceBounds& bounds) {
  const std::string recipe = recipe_of(golden_cases(c.golden).at(c.name));
  const TemporaryFolder folder;
  const fs::path here = run_recipe_text(folder / "cpu", recipe);
  EXPECT_EQ(column(here, "peak_device_memory").size(), 0u) << "nobody counts on the CPU";

  std::vector<std::string> settings;
  for (const std::string& role : c.roles)
    settings.push_back("roles." + role + ".world.device=cuda");
  for (size_t i = 0; i < c.maps.size(); ++i) {
    SCOPED_TRACE("device maps: " + (c.maps[i].empty() ? "none" : c.maps[i]));
    std::vector<std::string> all = settings;
    if (!c.maps[i].empty()) all.push_back("rpc.device_maps=" + c.maps[i]);
    const fs::path there = run_recipe_text(folder / ("device" + std::to_string(i)), recipe, all);
    if (testing::Test::HasFailure()) return;
    expect_same_run(c, there, here, device, bounds);
  }
}

}  // namespace retort::test
