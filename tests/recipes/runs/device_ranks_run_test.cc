// Whole runs whose student has two ranks, each on a stand-in device of its own, as every rank of
// the other roles but where a host has too few: collectives between them are those of
// tests/parallel/stand_in, which end the run where ranks do not do the same, read a result before
// its time, or leave one unread. What comes out are the numbers that PyTorch and TRL have for one
// process.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <regex>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/device_cases.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/stand_in_setting.h"

namespace retort::test {
namespace {

constexpr double kTolerance = 1e-5;

struct Ranks {
  std::string role;
  std::string devices;        // that they compute on, a digit each
  bool are_replicas = false;  // which have no collectives between each other
};

struct RanksCase {
  std::string name;
  std::string golden, changes, golden_name;  // as DeviceCase's
  std::vector<Ranks> ranks;                  // of all roles, each on the device
  std::vector<std::string> settings;         // what splits the run over them
  std::vector<std::string> metrics;
  int64_t num_devices = 0;  // of the host; 0: one for each rank
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
           {{"student", "01"}},
           joined(kZero, kOnce),
           {"loss", "grad_norm"}},
          // Two replicas of a teacher take what the student, which names its devices, leaves them.
          {"distill_topk_tensor",
           "expected",
           "changes",
           "jsd_topk_bucket",
           {{"student", "20"}, {"teacher", "13", true}},
           joined(kTensor, {"roles.student.devices=[2, 0]", "roles.teacher.world.dp=2"}),
           kDistill},
          // The teacher's second rank shares a device with the student's first.
          {"distill_hidden_states_zero",
           "expected",
           "changes",
           "forward_hidden_mix",
           {{"student", "01"}, {"teacher", "20"}},
           joined(joined(kZero, kOnce), {"roles.teacher.world.tp=2"}),
           kDistill,
           3},
          {"dpo_sequence",
           "preference",
           "preference_changes",
           "sigmoid",
           {{"student", "01"}, {"reference", "2"}},
           kSequence,
           {"loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins",
            "logps/chosen", "logps/rejected"}},
          {"grpo_zero",
           "policy",
           "policy_changes",
           "reference",
           {{"student", "01"}, {"generator", "2"}, {"reference", "3"}},
           joined(kZero, {"train.per_device_train_batch_size=4"}),
           {"loss", "grad_norm", "kl"}},
          {"grpo_tensor",
           "policy",
           "policy_changes",
           "reference",
           {{"student", "01"}, {"generator", "23"}, {"reference", "4"}},
           joined(kTensor, {"roles.generator.world.tp=2"}),
           {"loss", "grad_norm", "kl"}}};
}

std::string log_of(const fs::path& run, const std::string& role, size_t rank) {
  return read_file(run / "logs" / (role + "-" + std::to_string(rank) + ".log"));
}

// Each rank computes on its device, and those of one world have collectives there.
void expect_devices(const fs::path& run, const std::vector<Ranks>& all) {
  static const std::regex ended("has ended ([a-z_.]+) after operation [1-9]");
  for (const auto& [role, devices, are_replicas] : all)
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      const std::string log = log_of(run, role, rank);
      const std::string device = std::string("computes on stand_in:") + devices[rank];
      EXPECT_NE(log.find(device), std::string::npos) << device << "\n" << log;
      if (devices.size() > 1 && !are_replicas) {
        EXPECT_TRUE(std::regex_search(log, ended)) << "no collectives on the device:\n" << log;
      }
    }
}

// Ranks whose device another role's has too say so, and the others do not.
void expect_warnings(const fs::path& run, const std::vector<Ranks>& all) {
  for (const Ranks& own : all)
    for (size_t rank = 0; rank < own.devices.size(); ++rank) {
      std::string others;
      for (const Ranks& other : all)
        if (other.role != own.role && other.devices.find(own.devices[rank]) != std::string::npos)
          others += other.role;
      const std::string log = log_of(run, own.role, rank);
      const std::string warning =
          own.role + " shares stand_in:" + own.devices[rank] + " with " + others;
      EXPECT_EQ(log.find(" shares stand_in") != std::string::npos, !others.empty()) << log;
      if (!others.empty()) {
        EXPECT_NE(log.find(warning), std::string::npos) << warning << "\n" << log;
      }
    }
}

class DeviceRanksRun : public testing::TestWithParam<RanksCase> {};

TEST_P(DeviceRanksRun, HasTheNumbersOfOneProcess) {
  const RanksCase& c = GetParam();
  const nlohmann::json golden = golden_cases(c.golden).at(c.golden_name);
  const std::string recipe = recipe_of(golden);
  TemporaryFolder folder;

  std::vector<std::string> settings = c.settings;
  int64_t processes = 0;
  for (const Ranks& ranks : c.ranks) {
    settings.push_back("roles." + ranks.role + ".world.device=cuda");
    processes += std::ssize(ranks.devices);
  }
  const StandInModule module(c.num_devices > 0 ? c.num_devices : processes);
  const fs::path run = run_recipe_text(folder.path(), recipe, settings);
  ASSERT_FALSE(HasFailure());
  expect_devices(run, c.ranks);
  expect_warnings(run, c.ranks);

  // A golden of samples holds those of one process, in whatever ranks' files they are now.
  for (const std::string& metric : c.metrics)
    expect_close(column(run, metric), golden_metric(golden, metric), metric, kTolerance);
  if (golden.contains("samples")) expect_recorded_samples(run, golden);
  expect_same_parameters(run, "qwen3", c.changes, c.golden_name);
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceRanksRun, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test
