// Runs of processes that nobody launches: each is one `retort join`. What they compute is what
// `retort launch` computes, bit for bit, whoever's variables say which rank each is.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/network_interfaces.h"
#include "base/private_file.h"
#include "tests/recipes/run_support/joined_run.h"
#include "tests/recipes/run_support/on_policy_support.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

using Variables = std::map<std::string, std::string>;
using Strings = std::vector<std::string>;

// Two students and a teacher: three processes.
constexpr int64_t kSize = 3;

fs::path distill(const fs::path& folder, int64_t steps = 4) {
  return write_recipe(folder, {.teacher = "teacher", .dp = 2, .rows = 2, .steps = steps});
}

// The metrics of the run that is launched, which is done once for all that compare with it.
const std::string& launched(int64_t steps = 4) {
  static std::map<int64_t, std::string> metrics;
  const auto [found, is_new] = metrics.try_emplace(steps);
  if (is_new) {
    const TemporaryFolder folder;
    const auto result = retort({"launch", distill(folder.path(), steps).string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    found->second = timeless_metrics(folder / "run");
  }
  return found->second;
}

void expect_done(const std::vector<CommandResult>& results) {
  for (const auto& result : results)
    EXPECT_EQ(result.exit_code, 0) << result.output;
}

// What a scheduler sets for one process of kSize, besides what it is given in all of them.
struct Environment {
  std::string name;
  std::function<Variables(const JoinedRun&, int64_t rank)> variables;
  Strings arguments;  // what it does not say
};
std::ostream& operator<<(std::ostream& out, const Environment& one) { return out << one.name; }

std::vector<Environment> environments() {
  const std::string host = "launch.rendezvous.address=127.0.0.1";
  return {{"Slurm",
           [](const JoinedRun&, int64_t rank) {
             return Variables{{"SLURM_PROCID", std::to_string(rank)},
                              {"SLURM_NTASKS", "3"},
                              {"SLURM_STEP_NUM_TASKS", "3"},
                              {"SLURM_LOCALID", std::to_string(rank)},
                              {"SLURM_NODEID", "0"},
                              {"SLURM_JOB_NODELIST", "localhost"},
                              {"SLURM_JOB_ID", "7"}};
           },
           {}},

          {"Torchrun",
           [](const JoinedRun& run, int64_t rank) {
             return Variables{{"RANK", std::to_string(rank)},       {"WORLD_SIZE", "3"},
                              {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", "3"},
                              {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", run.port()}};
           },
           {}},

          {"OpenMpi",
           [](const JoinedRun&, int64_t rank) {
             return Variables{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                              {"OMPI_COMM_WORLD_SIZE", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)}};
           },
           {host}},

          // A Job a role would set RETORT_ROLE; one Job for all counts them.
          {"Kubernetes",
           [](const JoinedRun&, int64_t rank) {
             return Variables{{"JOB_COMPLETION_INDEX", std::to_string(rank)}};
           },
           {host}}};
}

class JoinedBy : public testing::TestWithParam<Environment> {};

TEST_P(JoinedBy, HasTheNumbersOfALaunchedRun) {
  const TemporaryFolder folder;

  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  for (int64_t rank = 0; rank < kSize; ++rank) {
    JoinedProcess process{.variables = GetParam().variables(run, rank),
                          .arguments = {recipe.string()}};
    // Nothing of ours says where it meets, and the recipe says where the secret is.
    process.variables["RETORT_RENDEZVOUS"] = process.variables["RETORT_SECRET_FILE"] = "";
    process.arguments.push_back("launch.secret_file=" + run.secret().string());
    const Strings& more = GetParam().arguments;
    process.arguments.insert(process.arguments.end(), more.begin(), more.end());
    const bool has_port = process.variables.contains("MASTER_PORT");
    if (!has_port) process.arguments.push_back("launch.rendezvous.port=" + run.port());
    run.start(std::move(process));
  }
  expect_done(run.wait());
  EXPECT_EQ(timeless_metrics(folder / "joined" / "run"), launched());
  EXPECT_TRUE(fs::exists(folder / "joined" / "run" / "final" / "config.json"));
  const auto status = nlohmann::json::parse(read_file(folder / "joined" / "run" / "status.json"));
  EXPECT_EQ(status.at("state"), "done");
  EXPECT_EQ(status.at("processes").size(), 3U);
  for (const auto& process : status.at("processes"))
    EXPECT_EQ(process.at("exit_code"), 0) << process;
  EXPECT_EQ(processes_of(folder.path()), std::vector<int>{});
}
INSTANTIATE_TEST_SUITE_P(Schedulers, JoinedBy, testing::ValuesIn(environments()),
                         [](const auto& param) { return param.param.name; });

// Where the run meets, and what each process adds.
void expect_same_run_at(const std::string& host, const Strings& more = {}) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined", host);
  run.start_all(distill(folder / "joined"), kSize, more);
  expect_done(run.wait());
  EXPECT_EQ(timeless_metrics(folder / "joined" / "run"), launched());
}

TEST(JoinedAt, AnotherLoopbackAddress) {
  // The store at one address, RPC and collectives at the other.
  expect_same_run_at("127.0.0.2", {"rpc.bind=127.0.0.3"});
}
TEST(JoinedAt, ASubnetAndARangeOfPorts) {
  expect_same_run_at("127.0.0.1", {"rpc.bind=127.0.0.0/8", "rpc.port=\"21000-29000\""});
}
TEST(JoinedAt, AnIPv6Address) {
  const auto all = interface_addresses();
  if (std::none_of(all.begin(), all.end(), [](const auto& one) { return one.address == "::1"; }))
    GTEST_SKIP() << "this host has no ::1";
  expect_same_run_at("::1");
}
TEST(JoinedAt, AnAddressThatOthersReachIsEncrypted) {
  std::string address;
  try {
    address = only_outer_address(interface_addresses()).address;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  expect_same_run_at(address);
}

TEST(Joined, AProcessWithoutARecipeTakesTheRuns) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  run.start({.variables = {{"RETORT_RANK", "0"}},
             .arguments = {recipe.string(), "roles.teacher.env={MY_KEY: hf_4711}",
                           "roles.student.env={OTHER_KEY: null}"}});
  run.start(
      {.variables = {{"OTHER_KEY", "hf_4712"}}, .arguments = {"--role", "student", "--rank", "1"}});
  // As a step of Slurm has it.
  run.start({.variables = {{"RETORT_ENV_MY_KEY", "hf_4711"}},
             .arguments = {"--role", "teacher", "--rank", "0"}});
  expect_done(run.wait());
  // What was written down, and no stand-in for what others know.
  const std::string values = read_file(folder / "joined" / "run" / "roles.env");
  EXPECT_NE(values.find("hf_4711"), std::string::npos);
  EXPECT_EQ(values.find("OTHER_KEY"), std::string::npos);
  EXPECT_EQ(timeless_metrics(folder / "joined" / "run"), launched());
}

// The recipe that it is given has no values of variables, which may be keys.
TEST(Joined, AProcessWithoutARecipeNamesTheVariablesThatItLacks) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  const std::string key = "roles.teacher.env={MY_KEY: hf_4711}";
  for (const char* rank : {"0", "1"})
    run.start({.variables = {{"RETORT_RANK", rank}}, .arguments = {recipe.string(), key}});
  run.start({.arguments = {"--role", "teacher", "--rank", "0"}});
  for (const auto& result : run.wait()) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.output.find("MY_KEY of its role's env is not set here"), std::string::npos)
        << result.output;
    EXPECT_EQ(result.output.find("hf_4711"), std::string::npos) << result.output;
  }
}

TEST(Joined, AMissingRankAndAWrongSecretAreNamed) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  const std::string limit = std::to_string(10 * kSlowness) + "s";
  const std::string soon = "launch.load_timeout=" + limit;
  run.start({.variables = {{"RETORT_RANK", "0"}}, .arguments = {recipe.string(), soon}});
  run.start({.variables = {{"RETORT_RANK", "1"}}, .arguments = {recipe.string(), soon}});
  const fs::path other = folder / "other";
  write_private_file(other, std::string(64, '7'));
  run.start({.variables = {{"RETORT_RANK", "2"}, {"RETORT_SECRET_FILE", other.string()}},
             .arguments = {recipe.string(), soon}});

  const auto results = run.wait();
  EXPECT_EQ(results[0].exit_code, 1) << results[0].output;
  EXPECT_NE(results[0].output.find("teacher/0 did not join within " + limit), std::string::npos)
      << results[0].output;
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_NE(results[1].output.find("called the run off: teacher/0 did not join"), std::string::npos)
      << results[1].output;
  EXPECT_NE(results[2].exit_code, 0);
  EXPECT_NE(results[2].output.find("[unauthenticated"), std::string::npos) << results[2].output;
  EXPECT_EQ(processes_of(folder.path()), std::vector<int>{});
}

TEST(Joined, AnotherRecipeIsRefusedWithBothDigests) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  run.start({.variables = {{"RETORT_RANK", "0"}}, .arguments = {recipe.string()}});
  run.start({.variables = {{"RETORT_RANK", "1"}}, .arguments = {recipe.string()}});
  run.start(
      {.variables = {{"RETORT_RANK", "2"}}, .arguments = {recipe.string(), "train.max_steps=5"}});
  const auto results = run.wait();
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_NE(result.output.find("its recipe, once resolved, has the digest"), std::string::npos)
        << result.output;
  }
  EXPECT_NE(results[0].output.find("[mismatch"), std::string::npos);
  EXPECT_NE(results[2].output.find("[mismatch"), std::string::npos);
}

// Started with the others, and slower than the one that refuses.
TEST(Joined, WhoComesLateHearsThatTheRunIsCalledOff) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  run.start({.variables = {{"RETORT_RANK", "0"}}, .arguments = {recipe.string()}});
  run.start(
      {.variables = {{"RETORT_RANK", "2"}}, .arguments = {recipe.string(), "train.max_steps=5"}});
  ASSERT_TRUE(wait_until([&] { return !run[1].running(); }));
  run.start({.variables = {{"RETORT_RANK", "1"}}, .arguments = {recipe.string()}});
  for (const auto& result : run.wait())
    EXPECT_NE(result.output.find("its recipe, once resolved, has the digest"), std::string::npos)
        << result.output;
}

TEST(Joined, TwoProcessesOfOneRankAreTold) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  const fs::path recipe = distill(folder / "joined");
  run.start({.variables = {{"RETORT_RANK", "0"}}, .arguments = {recipe.string()}});
  run.start({.variables = {{"RETORT_RANK", "1"}}, .arguments = {recipe.string()}});
  run.start({.variables = {{"RETORT_RANK", "1"}}, .arguments = {recipe.string()}});

  // One of the two has the rank, and the run waits for its teacher until the other has heard it.
  ASSERT_TRUE(wait_until([&] { return !run[1].running() || !run[2].running(); }));
  const size_t second = run[1].running() ? 2 : 1;
  const auto told = run[second].wait();
  EXPECT_EQ(told.exit_code, 2);
  EXPECT_NE(told.output.find("student/1 has joined already: process "), std::string::npos)
      << told.output;

  // Another student/0 finds the port taken.
  const auto keeper =
      run.start({.variables = {{"RETORT_RANK", "0"}}, .arguments = {recipe.string()}}).wait();
  EXPECT_EQ(keeper.exit_code, 3) << keeper.output;
  EXPECT_NE(keeper.output.find("is there another student/0?"), std::string::npos) << keeper.output;

  run.start({.variables = {{"RETORT_RANK", "2"}}, .arguments = {recipe.string()}});
  EXPECT_EQ(run[0].wait().exit_code, 0);
  EXPECT_EQ(run[3 - second].wait().exit_code, 0);
  EXPECT_EQ(run[4].wait().exit_code, 0);
  EXPECT_EQ(timeless_metrics(folder / "joined" / "run"), launched());
}

void wait_for_steps(const fs::path& run, size_t steps) {
  ASSERT_TRUE(wait_until([&] { return metrics_rows(run) >= steps; }, std::chrono::seconds(90)));
}

class SignalAt : public testing::TestWithParam<size_t> {};

TEST_P(SignalAt, StopsTheRunWithACheckpointThatGoesOn) {
  constexpr int64_t kSteps = 150;
  const TemporaryFolder folder;
  bool was_over = false;
  const auto stopped = [&](const fs::path& place) {
    JoinedRun run(place);
    run.start_all(distill(place, kSteps), kSize);
    wait_for_steps(place / "run", 2);
    was_over = metrics_rows(place / "run") + 1 >= size_t{kSteps};
    run[GetParam()].signal(SIGTERM);
    return run.wait();
  };

  // Once more where the run was done before the signal came.
  fs::path place = folder / "joined1";
  auto results = stopped(place);
  for (int tried = 2; tried <= 5 && was_over; ++tried) {
    place = folder / ("joined" + std::to_string(tried));
    results = stopped(place);
  }
  EXPECT_EQ(results[0].exit_code, 4) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 4) << results[1].output;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].output;
  EXPECT_NE(results[0].output.find("start all processes again with --resume"), std::string::npos)
      << results[0].output;
  EXPECT_EQ(processes_of(folder.path()), std::vector<int>{});
  EXPECT_LT(metrics_rows(place / "run"), size_t{kSteps});

  JoinedRun run(place);
  run.start_all(place / "recipe.yaml", kSize, {"--resume"});
  expect_done(run.wait());
  EXPECT_EQ(timeless_metrics(place / "run"), launched(kSteps));
}
INSTANTIATE_TEST_SUITE_P(Rank, SignalAt, testing::Values(0, 1, 2));

// Before anybody waits for signals they are held, so that none is lost and none kills.
TEST(Joined, ASignalInItsFirstMomentsIsAnEndInGoodOrder) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "alone");
  const fs::path recipe = write_recipe(folder / "alone", {.rows = 2, .steps = 100000});
  const auto start = [&](const std::string& how) -> Command& {
    return run.start({.variables = {{"RETORT_RANK", "0"}}, .arguments = {recipe.string(), how}});
  };
  ASSERT_EQ(start("train.exit_interval=2").wait().exit_code, 4);

  Command& again = start("--resume");
  const auto holds_signals = [&] {
    std::ifstream status("/proc/" + std::to_string(again.pid()) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigBlk:"))
        return (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
    return false;
  };
  ASSERT_TRUE(wait_until(holds_signals, std::chrono::seconds(60), std::chrono::milliseconds(1)));
  again.signal(SIGTERM);
  const CommandResult result = again.wait();
  EXPECT_NE(result.exit_code, 128 + SIGTERM) << result.output;
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("stopp"), std::string::npos) << result.output;
  EXPECT_EQ(processes_of(folder.path()), std::vector<int>{});
}

// As scancel does it: what a rank tells first is not a person's first Ctrl-C.
TEST(Joined, ASignalToAllProcessesAsksOnce) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  run.start_all(distill(folder / "joined", 100000), kSize);
  wait_for_steps(folder / "joined" / "run", 2);
  // Without student/1 nobody can save, so that the second signal finds the run still stopping.
  run[1].signal(SIGSTOP);
  run[2].signal(SIGTERM);
  EXPECT_TRUE(wait_until([&] { return run[0].output().find("stopping (") != std::string::npos; }));
  run[0].signal(SIGTERM);
  run[1].signal(SIGTERM);
  run[1].signal(SIGCONT);
  const auto results = run.wait();
  EXPECT_EQ(results[0].exit_code, 4) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 4) << results[1].output;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].output;
}

// Whatever is lost, the others end by themselves and nothing stays.
class LossOf : public testing::TestWithParam<size_t> {};

TEST_P(LossOf, EndsTheOthers) {
  const TemporaryFolder folder;
  JoinedRun run(folder / "joined");
  run.start_all(distill(folder / "joined", 4000), kSize,
                {"rpc.heartbeat_interval=200ms", "rpc.peer_timeout=3s", "launch.stop_timeout=20s"});
  wait_for_steps(folder / "joined" / "run", 2);
  run[GetParam()].signal(SIGKILL);

  const auto results = run.wait();
  EXPECT_EQ(results[GetParam()].exit_code, 128 + SIGKILL);
  // A teacher that was asked to end has done what it should.
  const bool is_told = GetParam() != 0;
  EXPECT_EQ(results[2].exit_code == 0, is_told && GetParam() != 2) << results[2].output;
  EXPECT_NE(results[1].exit_code, 0) << results[1].output;
  EXPECT_NE(results[0].exit_code, 0) << results[0].output;
  const std::string names[] = {"student/0", "student/1", "teacher/0"};
  if (is_told) {
    EXPECT_NE(results[0].output.find(names[GetParam()] + " failed first: it was lost"),
              std::string::npos)
        << results[0].output;
  }
  EXPECT_TRUE(wait_until([&] { return processes_of(folder.path()).empty(); }));
}
INSTANTIATE_TEST_SUITE_P(Rank, LossOf, testing::Values(0, 1, 2));

}  // namespace
}  // namespace retort::test
