// Which rank a process is, by the variables that schedulers and we ourselves set.
#include "launch/join/rank_identity.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/process_name.h"
#include "launch/join/carried_variables.h"
#include "launch/join/join_protocol.h"
#include "launch/run_folder/secret_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using launch::find_place;
using launch::first_slurm_host;
using launch::JoinArguments;
using launch::JoinPlace;
using launch::meeting_point;
using launch::Member;
using launch::rank_of_place;
using launch::share_cores;
using launch::Variables;

JoinPlace place_of(const Variables& variables, const JoinArguments& arguments = {},
                   const std::string& full_name = "host") {
  return find_place(arguments, variables, full_name);
}

// The student has two ranks, and stands between the roles that serve it.
recipes::Recipe recipe_of() {
  recipes::Recipe recipe;
  recipe.roles["critic"].world.dp = 1;
  recipe.roles["student"].world.dp = 2;
  recipe.roles["teacher"].world.dp = 3;
  return recipe;
}
std::string name_of(const JoinPlace& place) {
  const auto rank = rank_of_place(place, recipe_of());
  return process_name(rank.role, rank.rank);
}

// As srun sets them in each task of `srun -N3 -n6`.
Variables slurm(int64_t rank) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", "6"},
          {"SLURM_STEP_NUM_TASKS", "6"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "0"},
          {"SLURM_JOB_NODELIST", "gpu[03-05]"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"}};
}

TEST(JoinPlace, Slurm) {
  const JoinPlace place = place_of(slurm(2));
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.size, 6);
  EXPECT_EQ(place.host, "gpu03");
  EXPECT_EQ(place.port, 0);
  EXPECT_EQ(name_of(place), "critic/0");
}

TEST(JoinPlace, OpenMpi) {
  const JoinPlace place = place_of({{"OMPI_COMM_WORLD_RANK", "5"},
                                    {"OMPI_COMM_WORLD_SIZE", "6"},
                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(place.host, "");
  EXPECT_EQ(name_of(place), "teacher/2");
}

TEST(JoinPlace, Torchrun) {
  Variables variables{{"RANK", "1"},
                      {"WORLD_SIZE", "6"},
                      {"LOCAL_RANK", "1"},
                      {"MASTER_ADDR", "fd00::1"},
                      {"MASTER_PORT", "29500"}};
  EXPECT_EQ(place_of(variables).host, "fd00::1");
  EXPECT_EQ(place_of(variables).port, 29500);
  EXPECT_EQ(name_of(place_of(variables)), "student/1");

  // torchrun's agent listens at that port itself.
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  const JoinPlace place = place_of(variables);
  EXPECT_EQ(place.port, 0);
  expect_refused("at MASTER_PORT listens torchrun", [&] { meeting_point(place, {}); });
  EXPECT_EQ(meeting_point(place, {.port = 7070}).port, 7070);
}

TEST(JoinPlace, Kubernetes) {
  const Variables variables{{"JOB_COMPLETION_INDEX", "3"}};
  const JoinPlace place = place_of(variables, {}, "train-3.train.default.svc.cluster.local");
  EXPECT_EQ(place.host, "train-0.train.default.svc.cluster.local");
  EXPECT_EQ(name_of(place), "teacher/0");

  // A pod without a service, and one of a role that has a Job of its own.
  EXPECT_EQ(place_of(variables, {}, "train-3").host, "");
  EXPECT_EQ(place_of(variables, {.role = "teacher"}, "train-3.train.default.svc").host, "");
}

TEST(JoinPlace, OursComeFirst) {
  Variables variables = slurm(2);
  variables["RETORT_ROLE"] = "teacher";
  variables["RETORT_RANK"] = "1";
  variables["RETORT_RENDEZVOUS"] = "[fd00::7]:7000";
  variables["RETORT_SECRET_FILE"] = "/run/secret";
  variables["RETORT_ADVERTISE"] = "outer:9000";
  const JoinPlace place = place_of(variables);
  EXPECT_EQ(name_of(place), "teacher/1");
  EXPECT_EQ(place.host, "fd00::7");
  EXPECT_EQ(place.port, 7000);
  EXPECT_EQ(place.secret_file, "/run/secret");
  EXPECT_EQ(place.advertise, "outer:9000");
}

TEST(JoinPlace, ARoleTakesTheSchedulersRankAsItsOwn) {
  Variables variables = slurm(2);
  variables["SLURM_STEP_NUM_TASKS"] = "3";
  EXPECT_EQ(name_of(place_of(variables, {.role = "teacher"})), "teacher/2");
  expect_refused("SLURM_STEP_NUM_TASKS says that 3 processes were started, but the role student",
                 [&] { name_of(place_of(variables, {.role = "student"})); });
}

TEST(JoinPlace, AnEmptyVariableSaysNothing) {
  EXPECT_EQ(name_of(place_of({{"RANK", "0"}, {"RETORT_RANK", ""}, {"RETORT_ROLE", ""}})),
            "student/0");
}

TEST(JoinPlace, ContradictionsNameBoth) {
  Variables two = slurm(0);
  two["RANK"] = "3";
  expect_refused("SLURM_PROCID and RANK contradict each other about the rank: 0 and 3",
                 [&] { place_of(two); });
  two["RANK"] = "0";
  two["WORLD_SIZE"] = "4";
  expect_refused("SLURM_STEP_NUM_TASKS and WORLD_SIZE", [&] { place_of(two); });
  // What is said explicitly decides.
  EXPECT_EQ(place_of(two, {.rank = 4}).rank, 4);

  expect_refused("--rank and RETORT_RANK contradict", [] {
    place_of({{"RETORT_RANK", "2"}}, {.rank = 1});
  });
  expect_refused("--role and RETORT_ROLE contradict", [] {
    place_of({{"RETORT_RANK", "2"}, {"RETORT_ROLE", "teacher"}}, {.role = "student"});
  });
  expect_refused("leave one of them out", [] {
    meeting_point(place_of({{"RETORT_RANK", "0"}, {"RETORT_RENDEZVOUS", "a:7000"}}),
                  {.address = "b"});
  });
}

TEST(JoinPlace, WhatIsMissingOrWrongIsNamed) {
  expect_refused("looked for --rank, RETORT_RANK", [] { place_of({{"SLURM_JOB_ID", "7"}}); });
  for (const char* bad : {"x", "-1", "1x", "99999999999999999999"})
    expect_refused("SLURM_PROCID is '", [&] { place_of({{"SLURM_PROCID", bad}}); });
  expect_refused("an address is host:port", [] {
    place_of({{"RANK", "0"}, {"RETORT_RENDEZVOUS", "gpu1"}});
  });
  expect_refused("has no role 'judge'; it has critic, student, teacher", [] {
    name_of(place_of({{"RETORT_RANK", "0"}}, {.role = "judge"}));
  });
  expect_refused("ranks 0 to 5, this is 6", [] { name_of(place_of({{"RETORT_RANK", "6"}})); });
  expect_refused("WORLD_SIZE says that 5 processes were started, but the recipe has 6", [] {
    name_of(place_of({{"RANK", "0"}, {"WORLD_SIZE", "5"}}));
  });
  expect_refused("at which host", [] { meeting_point(place_of({{"RANK", "0"}}), {}); });
  expect_refused("at which port", [] {
    meeting_point(place_of({{"RANK", "0"}}), {.address = "gpu1"});
  });
}

TEST(JoinPlace, TheFirstHostOfAList) {
  for (const auto& [list, first] :
       std::map<std::string, std::string>{{"gpu1", "gpu1"},
                                          {"gpu1,gpu2", "gpu1"},
                                          {"gpu[03-05,9],x1", "gpu03"},
                                          {"gpu[7]", "gpu7"},
                                          {"x1,gpu[1-2]", "x1"},
                                          {"r[1-2]n[4-5]-ib,x", "r1n4-ib"}})
    EXPECT_EQ(first_slurm_host(list), first) << list;
  for (const char* bad : {"gpu[", "gpu[]"})
    expect_refused("the list of hosts", [&] { first_slurm_host(bad); });
}

TEST(ShareCores, ALaunchersCountWhereAllMayUseAll) {
  const Member a{.name = "a/0", .machine = "m", .cpus = "11111111"};
  Member b = a, c = a;
  b.name = "b/0";
  c.name = "c/0";
  const std::map<std::string, int64_t> equal{{"a/0", 2}, {"b/0", 2}, {"c/0", 2}};
  EXPECT_EQ(share_cores({a, b, c}), equal);
}

TEST(ShareCores, CountsTheProcessesOfItsOwnMachineAndCores) {
  const std::vector<Member> members{{.name = "a/0", .machine = "m", .cpus = "1111"},
                                    {.name = "b/0", .machine = "n", .cpus = "1111"},
                                    {.name = "b/1", .machine = "n", .cpus = "11110000"},
                                    // A scheduler gave each of these cores of its own.
                                    {.name = "c/0", .machine = "p", .cpus = "1110"},
                                    {.name = "c/1", .machine = "p", .cpus = "000111"},
                                    {.name = "d/0", .machine = "q", .cpus = ""}};
  const std::map<std::string, int64_t> shares{{"a/0", 4}, {"b/0", 2}, {"b/1", 2},
                                              {"c/0", 3}, {"c/1", 3}, {"d/0", 1}};
  EXPECT_EQ(share_cores(members), shares);
}

TEST(RunNetwork, EncryptionFollowsFromTheTextAlone) {
  using rpc::Encryption;
  using rpc::settled_encryption;
  for (const char* here : {"127.0.0.1", "127.0.0.2", "::1", "localhost"})
    EXPECT_EQ(settled_encryption(Encryption::kAuto, here), Encryption::kNever) << here;
  // A name is encrypted wherever it leads.
  for (const char* there : {"10.0.0.1", "fd00::1", "gpu1", "localhost.example"})
    EXPECT_EQ(settled_encryption(Encryption::kAuto, there), Encryption::kAlways) << there;
  EXPECT_EQ(settled_encryption(Encryption::kNever, "10.0.0.1"), Encryption::kNever);
  EXPECT_EQ(settled_encryption(Encryption::kAlways, "::1"), Encryption::kAlways);
}

TEST(RunNetwork, AutoIsTheWayToTheRendezvous) {
  EXPECT_EQ(rpc::listen_address("auto", "127.0.0.1", 7000), "127.0.0.1");
  EXPECT_EQ(rpc::listen_address("auto", "localhost", 7000).substr(0, 3) == "127" ||
                rpc::listen_address("auto", "localhost", 7000) == "::1",
            true);
  EXPECT_EQ(rpc::listen_address("127.0.0.0/8", "localhost", 7000), "127.0.0.1");
  EXPECT_EQ(rpc::listen_address("lo", "localhost", 7000), "127.0.0.1");
  EXPECT_EQ(rpc::listen_address("127.0.0.5", "localhost", 7000), "127.0.0.5");
  expect_error(ErrorCode::kUnavailable, "this host has lo 127.0.0.1",
               [] { rpc::listen_address("203.0.113.0/24", "127.0.0.1", 7000); });
  expect_error(ErrorCode::kUnavailable, "does not resolve",
               [] { rpc::listen_address("no such host", "127.0.0.1", 7000); });
}

TEST(RunNetwork, TheRendezvousIsServedWhereItsNameLeads) {
  EXPECT_EQ(rpc::rendezvous_address("auto", "127.0.0.2", 7000), "127.0.0.2");
  EXPECT_EQ(rpc::rendezvous_address("lo", "127.0.0.2", 7000), "127.0.0.2");
  // An address of somebody in between: it listens where it listens for all else.
  EXPECT_EQ(rpc::rendezvous_address("lo", "203.0.113.1", 7000), "127.0.0.1");
}

TEST(CarriedVariables, HaveTheirNamesAgainWhereTheyAreMeantFor) {
  for (const auto& [name, value] :
       launch::carried_variables({{"RETORT_TEST_PATH", "a=b:c"}, {"RETORT_TEST_EMPTY", ""}}))
    ::setenv(name.c_str(), value.c_str(), 1);
  EXPECT_EQ(std::getenv("RETORT_TEST_PATH"), nullptr);
  launch::take_carried_variables();
  EXPECT_STREQ(std::getenv("RETORT_TEST_PATH"), "a=b:c");
  EXPECT_STREQ(std::getenv("RETORT_TEST_EMPTY"), "");
  EXPECT_EQ(std::getenv("RETORT_ENV_RETORT_TEST_PATH"), nullptr);
  ::unsetenv("RETORT_TEST_PATH");
  ::unsetenv("RETORT_TEST_EMPTY");
}

TEST(SecretFile, IsReadWithoutSpaceAndHasALength) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& content) {
    const auto path = folder.write("secret", content);
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return path;
  };
  EXPECT_EQ(launch::read_secret(file(" 0123456789abcdef\n")), "0123456789abcdef");
  expect_refused("has 15 characters", [&] { launch::read_secret(file("0123456789abcde\n")); });
  expect_refused("has 0 characters", [&] { launch::read_secret(file("\n")); });
  expect_refused("cannot open", [&] { launch::read_secret(folder / "nowhere"); });

  const auto open = file("0123456789abcdef\n");
  std::filesystem::permissions(open, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  expect_refused("has mode 0604", [&] { launch::read_secret(open); });
  EXPECT_EQ(launch::read_secret(open, /*is_own=*/true), "0123456789abcdef");
}

}  // namespace
}  // namespace retort::test
