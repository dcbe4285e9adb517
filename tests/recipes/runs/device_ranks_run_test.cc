// Whole runs whose student has two ranks, each on a stand-in device of its own, as every rank of
// the other roles: collectives between them are those of tests/parallel/stand_in, which end the run
// where ranks do not do the same, read a result before its time, or leave one unread. What comes
// out are the numbers that PyTorch and TRL have for one process.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/device_cases.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/recipes/run_support/stand_in_setting.h"

namespace retort::test {
namespace {

constexpr double kTolerance = 1e-5;

struct Ranks {
  std::string role;
  int64_t count = 1;
};

struct RanksCase {
  std::string name;
  std::string golden, changes, golden_name;  // as DeviceCase's
  std::vector<Ranks> ranks;                  // of all roles, each on the device
  std::vector<std::string> settings;         // what splits the run over them
  std::vector<std::string> metrics;
};

void PrintTo(const RanksCase& c, std::ostream* out) { *out << c.name; }

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What two ranks of the student split: rows, with parts of the optimizer; matrices; and besides the
// norms' rows.
const std::vector<std::string> kZero{"roles.student.world.dp=2",
                                     "roles.student.world.distributed_optimizer=true"};
const std::vector<std::string> kTensor{"roles.student.world.tp=2"};
const std::vector<std::string> kSequence{"roles.student.world.tp=2",
                                         "roles.student.world.sequence_parallel=true"};
// Where one process takes two micro-batches, each of two ranks has one.
const std::vector<std::string> kOnce{"train.gradient_accumulation_steps=1"};

const std::vector<std::string> kDistill{"loss", "grad_norm", "kd_loss", "ce_loss"};

std::vector<RanksCase> cases() {
  return {{"sft_zero",
           "expected",
           "changes",
           "sft_qwen3",
           {{"student", 2}},
           joined(kZero, kOnce),
           {"loss", "grad_norm"}},
          {"distill_topk_tensor",
           "expected",
           "changes",
           "jsd_topk_bucket",
           {{"student", 2}, {"teacher", 1}},
           kTensor,
           kDistill},
          {"distill_hidden_states_zero",
           "expected",
           "changes",
           "forward_hidden_mix",
           {{"student", 2}, {"teacher", 2}},
           joined(joined(kZero, kOnce), {"roles.teacher.world.tp=2"}),
           kDistill},
          {"dpo_sequence",
           "preference",
           "preference_changes",
           "sigmoid",
           {{"student", 2}, {"reference", 1}},
           kSequence,
           {"loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins",
            "logps/chosen", "logps/rejected"}},
          {"grpo_zero",
           "policy",
           "policy_changes",
           "reference",
           {{"student", 2}, {"generator", 1}, {"reference", 1}},
           joined(kZero, {"train.per_device_train_batch_size=4"}),
           {"loss", "grad_norm", "kl"}},
          {"grpo_tensor",
           "policy",
           "policy_changes",
           "reference",
           {{"student", 2}, {"generator", 2}, {"reference", 1}},
           joined(kTensor, {"roles.generator.world.tp=2"}),
           {"loss", "grad_norm", "kl"}}};
}

std::string log_of(const fs::path& run, const std::string& role, int64_t rank) {
  return read_file(run / "logs" / (role + "-" + std::to_string(rank) + ".log"));
}

// Each rank has a device of its own, and those of one role collectives between them.
void expect_devices(const fs::path& run, const std::vector<Ranks>& all) {
  static const std::regex device("computes on (stand_in:[0-9]+)");
  static const std::regex ended("has ended ([a-z_.]+) after operation [1-9]");
  std::set<std::string> devices;
  size_t processes = 0;
  for (const auto& [role, count] : all)
    for (int64_t rank = 0; rank < count; ++rank, ++processes) {
      const std::string log = log_of(run, role, rank);
      std::smatch found;
      EXPECT_TRUE(std::regex_search(log, found, device)) << log;
      devices.insert(found.str(1));
      if (count > 1) {
        EXPECT_TRUE(std::regex_search(log, ended)) << "no collectives on the device:\n" << log;
      }
    }
  EXPECT_EQ(devices.size(), processes);
}

// The same run by a process for each role, on the CPU, for what a golden holds of its rank alone.
void expect_samples_of_the_cpu(const fs::path& run, const fs::path& folder,
                               const std::string& recipe) {
  const fs::path here = run_recipe_text(folder, recipe);
  ASSERT_FALSE(testing::Test::HasFailure());
  expect_same_samples(run, here);
  EXPECT_LE(relative_difference(run / "final", here / "final"), kTolerance);
}

class DeviceRanksRun : public testing::TestWithParam<RanksCase> {};

TEST_P(DeviceRanksRun, HasTheNumbersOfOneProcess) {
  const RanksCase& c = GetParam();
  const nlohmann::json golden = golden_cases(c.golden).at(c.golden_name);
  const std::string recipe = recipe_of(golden);
  TemporaryFolder folder;

  std::vector<std::string> settings = c.settings;
  int64_t devices = 0;
  for (const auto& [role, count] : c.ranks) {
    settings.push_back("roles." + role + ".world.device=cuda");
    devices += count;
  }
  fs::path run;
  {
    const StandInModule module(devices);
    run = run_recipe_text(folder / "device", recipe, settings);
  }
  ASSERT_FALSE(HasFailure());
  expect_devices(run, c.ranks);

  for (const std::string& metric : c.metrics)
    expect_close(column(run, metric), golden_metric(golden, metric), metric, kTolerance);
  if (golden.contains("samples"))
    expect_samples_of_the_cpu(run, folder / "cpu", recipe);
  else
    expect_same_parameters(run, "qwen3", c.changes, c.golden_name);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceRanksRun, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test
