// What the doctor concludes from what cannot be made here: control groups, clocks, and hosts that
// see different files.
#include <gtest/gtest.h>

#include "launch/doctor/cgroup_limits.h"
#include "launch/doctor/checks.h"
#include "launch/doctor/host_answer.h"
#include "launch/doctor/inputs.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using launch::doctor::CgroupLimits;
using launch::doctor::Finding;
using launch::doctor::HostAnswer;
using launch::doctor::Verdict;

class DoctorFiles : public FolderTest {
 protected:
  CgroupLimits limits() const {
    return launch::doctor::read_cgroup_limits(folder_ / "cgroup", folder_ / "own");
  }
};

TEST_F(DoctorFiles, TheTightestGroupCounts) {
  put(folder_ / "own", "0::/a/b\n");
  put(folder_ / "cgroup/a/cpu.max", "150000 100000\n");
  put(folder_ / "cgroup/a/b/cpu.max", "max 100000\n");
  put(folder_ / "cgroup/a/memory.max", "max\n");
  put(folder_ / "cgroup/a/b/memory.max", "1000000\n");
  put(folder_ / "cgroup/a/b/memory.current", "400000\n");
  EXPECT_DOUBLE_EQ(limits().cores.value_or(0), 1.5);
  EXPECT_EQ(limits().memory_bytes, 1'000'000);
  EXPECT_EQ(limits().used_bytes, 400'000);

  // Whichever of them is the tighter one.
  put(folder_ / "cgroup/a/b/cpu.max", "100000 100000\n");
  EXPECT_DOUBLE_EQ(limits().cores.value_or(0), 1);
  put(folder_ / "cgroup/a/memory.max", "2000000\n");
  EXPECT_EQ(limits().memory_bytes, 1'000'000);
  put(folder_ / "cgroup/a/memory.max", "500000\n");
  EXPECT_EQ(limits().memory_bytes, 500'000);
}

TEST(DoctorEnvironments, ProgramsAreLookedForInPath) {
  recipes::Recipe recipe;
  const auto found = [&](environments::EnvironmentOptions environment, int64_t ranks = 1) {
    recipe.roles["tools"].environment = std::move(environment);
    return launch::doctor::check_environments({.recipe = &recipe, .ranks = {{"tools", ranks}}});
  };
  EXPECT_TRUE(found({.command = {"sh"}}, /*ranks=*/0).empty()) << "it is on another host";
  const std::vector<Finding> there = found({.command = {"sh", "tools.sh"}});
  ASSERT_EQ(there.size(), 1u);
  EXPECT_EQ(there[0].verdict, Verdict::kOk) << there[0].what;

  const std::vector<Finding> missing = found({.command = {"no-such-program"}});
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].verdict, Verdict::kProblem);
  EXPECT_NE(missing[0].what.find("roles.tools: there is no program 'no-such-program' in PATH"),
            std::string::npos)
      << missing[0].what;
  EXPECT_NE(missing[0].action.find("in roles.tools.environment.command"), std::string::npos)
      << missing[0].action;
}

TEST_F(DoctorFiles, AnEnvironmentsProgramMustBeOneThatStarts) {
  recipes::Recipe recipe;
  const auto found = [&](const std::string& program) {
    recipe.roles["tools"].environment.emplace().command = {program};
    return launch::doctor::check_environments({.recipe = &recipe, .ranks = {{"tools", 1}}}).at(0);
  };
  const std::string file = (folder_ / "tools.sh").string();
  const Finding missing = found(file);
  EXPECT_EQ(missing.verdict, Verdict::kProblem) << missing.what;
  EXPECT_NE(missing.what.find("there is no program '" + file), std::string::npos) << missing.what;

  // Nobody may execute it, root neither.
  put(file, "#!/bin/sh\n");
  const Finding data = found(file);
  EXPECT_EQ(data.verdict, Verdict::kProblem) << data.what;
  EXPECT_NE(data.what.find("cannot be executed"), std::string::npos) << data.what;
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  EXPECT_EQ(found(file).verdict, Verdict::kOk);

  for (const std::string& words : {file + " --seed 3", std::string("no-such-program tools.py")}) {
    const Finding spaced = found(words);
    EXPECT_EQ(spaced.verdict, Verdict::kProblem) << spaced.what;
    EXPECT_NE(spaced.what.find("is one word with spaces"), std::string::npos) << spaced.what;
    EXPECT_NE(spaced.action.find("each argument an item"), std::string::npos) << spaced.action;
  }
}

TEST_F(DoctorFiles, AContainersOwnGroupIsTheRoot) {
  put(folder_ / "own", "0::/\n");
  put(folder_ / "cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(limits().cores.value_or(0), 0.5);
  EXPECT_FALSE(limits().memory_bytes);
}

TEST_F(DoctorFiles, TheFirstVersionsFilesAreRead) {
  put(folder_ / "own", "4:cpu,cpuacct:/x\n3:memory:/x\n");
  put(folder_ / "cgroup/cpu/x/cpu.cfs_quota_us", "300000\n");
  put(folder_ / "cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  put(folder_ / "cgroup/memory/x/memory.limit_in_bytes", "2000000\n");
  put(folder_ / "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_DOUBLE_EQ(limits().cores.value_or(0), 3);
  EXPECT_EQ(limits().memory_bytes, 2'000'000);
}

TEST_F(DoctorFiles, NoGroupLimitsNothing) {
  EXPECT_FALSE(limits().cores);
  EXPECT_FALSE(limits().memory_bytes);
}

// Asked at 100 s; the way there and back took a second each, on that host's clock or on ours.
Finding clock_of(double ahead_seconds) {
  const auto ns = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
  HostAnswer answer;
  answer.heard_ns = ns(101 + ahead_seconds);
  answer.answered_ns = ns(131 + ahead_seconds);  // engines were waited for
  return judge_clock(clock_difference(ns(100), answer, ns(132)));
}

TEST(DoctorClock, CountsOnlyWhatIsCertain) {
  EXPECT_EQ(clock_of(0).verdict, Verdict::kOk);
  EXPECT_EQ(clock_of(1.9).verdict, Verdict::kOk) << "the way took as long";
  EXPECT_EQ(clock_of(-2.5).verdict, Verdict::kWarning);
  EXPECT_NE(clock_of(-2.5).what.find("2.500 s behind ours"), std::string::npos)
      << clock_of(-2.5).what;
  EXPECT_EQ(clock_of(17).verdict, Verdict::kProblem);
  EXPECT_NE(clock_of(17).what.find("17.000 s ahead of ours, give or take 1.000 s"),
            std::string::npos)
      << clock_of(17).what;
}

TEST_F(DoctorFiles, WhatHostsSeeDifferentlyIsNamed) {
  put(folder_ / "a/model.safetensors", "weights");
  put(folder_ / "b/model.safetensors", "other s");
  put(folder_ / "c/model.safetensors", "weights");
  const auto print = [&](const char* name) { return launch::doctor::path_print(folder_ / name); };
  const auto compared = launch::doctor::compare_prints({{"h1", {{"/m", print("a")}}},
                                                        {"h2", {{"/m", print("b")}}},
                                                        {"h3", {{"/m", print("c")}}},
                                                        {"h4", {{"/m", print("none")}}}});
  ASSERT_EQ(compared.size(), 1);
  EXPECT_EQ(compared[0].verdict, Verdict::kProblem);
  EXPECT_NE(compared[0].what.find("h1, h3"), std::string::npos) << compared[0].what;
  EXPECT_EQ(compared[0].what.find("h4"), std::string::npos) << compared[0].what;

  // Its absence is said elsewhere (check_inputs).
  EXPECT_TRUE(launch::doctor::compare_prints(
                  {{"h1", {{"/m", print("a")}}}, {"h4", {{"/m", print("none")}}}})
                  .empty());

  const auto same =
      launch::doctor::compare_prints({{"h1", {{"/m", print("a")}}}, {"h2", {{"/m", print("c")}}}});
  ASSERT_EQ(same.size(), 1);
  EXPECT_EQ(same[0].verdict, Verdict::kOk);
}

// A host answers whatever it is asked; bytes that are no answer are refused.
TEST(DoctorHost, AnswersAWrongRecipeWithAProblem) {
  const std::string bytes = launch::doctor::answer_as_host(launch::doctor::encode_question(
      {.recipe = "recipe: none", .ranks = {}, .bind = "auto", .rendezvous = "::1"}));
  const HostAnswer answer = launch::doctor::decode_answer(bytes);
  ASSERT_EQ(answer.findings.size(), 1);
  EXPECT_EQ(answer.findings[0].verdict, Verdict::kProblem);
  EXPECT_GE(answer.answered_ns, answer.heard_ns);
  EXPECT_EQ(
      launch::doctor::decode_answer(launch::doctor::answer_as_host("nonsense")).findings.size(), 1);
  EXPECT_EQ(code_of([] { launch::doctor::decode_answer("nonsense"); }), ErrorCode::kCorrupt);
}

TEST(DoctorText, SaysWhatToDoBelowTheLine) {
  std::vector<Finding> findings{launch::doctor::fine("16 cores"),
                                launch::doctor::problem("60 files", "raise the limit")};
  findings[0].host = findings[1].host = "box";
  findings[0].check = "cores";
  findings[1].check = "descriptors";
  EXPECT_EQ(launch::doctor::to_text(findings),
            "ok       box  cores        16 cores\n"
            "problem  box  descriptors  60 files\n"
            "                           -> raise the limit\n"
            "1 problems, 0 warnings\n");
}

}  // namespace
}  // namespace retort::test
