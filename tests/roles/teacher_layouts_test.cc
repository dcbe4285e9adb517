// Teachers of every layout answer students of every layout with the numbers of one rank, and no
// byte of an answer travels twice.
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "tests/parallel/rank_process.h"
#include "tests/roles/teacher_layouts_scenarios.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;
using parallel::Layout;
using parallel::StoreClient;
using parallel::StoreServer;
using test::ChildProcess;

struct Roles {
  explicit Roles(const Layout& teacher_layout, const std::string& model,
                 std::chrono::milliseconds timeout = 60s)
      : layout(teacher_layout),
        client("127.0.0.1", server.port(), kTeacher, 60s),
        run("127.0.0.1", server.port(), kRun, 60s) {
    client.set("model", model);
    client.set("layout", std::to_string(layout.tp) + " " + std::to_string(layout.pp) + " " +
                             std::to_string(layout.dp));
    teachers = parallel::testing::spawn_ranks(
        server, {.scenario = "teacher", .layout = layout, .prefix = kTeacher, .timeout = timeout},
        layout.world_size());
  }
  std::vector<ChildProcess> students(const std::string& scenario, int64_t tp) {
    return parallel::testing::spawn_ranks(
        server, {.scenario = scenario, .layout = {.tp = tp}, .prefix = "run/" + scenario + "/"},
        tp);
  }
  void expect_good(std::vector<ChildProcess> ranks) {
    for (ChildProcess& rank : ranks)
      EXPECT_EQ(rank.wait(Deadline::after(120s)), 0);
  }
  void stop() {
    client.set("stop", "1");
    expect_good(std::move(teachers));
  }

  Layout layout;
  StoreServer server{"127.0.0.1"};
  StoreClient client, run;
  std::vector<ChildProcess> teachers;
};

class TeacherLayouts : public ::testing::TestWithParam<std::tuple<int, int, const char*>> {};

TEST_P(TeacherLayouts, AnswerEveryStudentAsOneRank) {
  const auto [tp, pp, model] = GetParam();
  for (const int64_t student_tp : {1, 2, 3}) {
    Roles roles({.tp = tp, .pp = pp}, model);
    roles.expect_good(roles.students("student", student_tp));
    roles.stop();
    for (int rank = 0; rank < tp * pp; ++rank)
      EXPECT_EQ(roles.client.get("kept/" + std::to_string(rank), Deadline::after(10s)), "0")
          << "every part was fetched";
    // Three requests of each of twelve payloads for three vocabularies, each computed once.
    EXPECT_EQ(roles.client.get("forwards/0", Deadline::after(10s)), "108") << student_tp;
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, TeacherLayouts,
                         ::testing::Values(std::tuple(1, 1, "padded"), std::tuple(2, 1, "padded"),
                                           std::tuple(2, 1, "golden"), std::tuple(1, 2, "golden"),
                                           std::tuple(2, 2, "padded")),
                         [](const auto& info) {
                           return "tp" + std::to_string(std::get<0>(info.param)) + "_pp" +
                                  std::to_string(std::get<1>(info.param)) + "_" +
                                  std::get<2>(info.param);
                         });

TEST(TeacherReplicas, RefuseABadRequestAndGoOn) {
  for (const int pp : {1, 2}) {
    Roles roles({.tp = 2, .pp = pp}, "golden");
    roles.expect_good(roles.students("refused", 2));
    roles.stop();
  }
}

TEST(TeacherReplicas, EndAsAWholeAndAnotherAnswers) {
  for (const auto& [layout, victim] :
       {std::pair(Layout{.tp = 2, .dp = 2}, 1), std::pair(Layout{.tp = 2, .dp = 2}, 0)}) {
    Roles roles(layout, "golden", 10s);
    auto students = roles.students("failover", 2);
    roles.run.get("kill", Deadline::after(60s));
    roles.teachers[static_cast<size_t>(victim)].kill();
    roles.run.set("kill/done", "1");
    roles.expect_good(std::move(students));
    const int survivor = 1 - victim;  // of the same replica
    EXPECT_EQ(roles.teachers[static_cast<size_t>(survivor)].wait(Deadline::after(20s)), 1);
    const std::string why =
        roles.client.get("failed/" + std::to_string(survivor), Deadline::after(1s));
    EXPECT_TRUE(why.find("collective") == 0 || why.find("timeout") == 0) << why;
    EXPECT_NE(why.find("teacher.mp"), std::string::npos) << why;
    roles.client.set("stop", "1");
    EXPECT_EQ(roles.teachers[2].wait(Deadline::after(60s)), 0);
    EXPECT_EQ(roles.teachers[3].wait(Deadline::after(60s)), 0);
  }
}

// Nobody asks anything: the idle ranks must not take that for a lost leader.
TEST(TeacherReplicas, OutliveTheirTimeoutWithoutWork) {
  Roles roles({.tp = 2}, "golden", 5s);  // in which both must have begun, too
  roles.client.get("address/1", Deadline::after(60s));
  std::this_thread::sleep_for(11s);
  EXPECT_TRUE(roles.teachers[0].running());
  EXPECT_TRUE(roles.teachers[1].running());
  roles.stop();
}

TEST(TopK, TakesTheLowestOfEqualIds) {
  for (const int64_t tp : {2, 3}) {
    StoreServer store("127.0.0.1");
    for (ChildProcess& rank :
         parallel::testing::spawn_ranks(store, {.scenario = "ties", .layout = {.tp = tp}}, tp))
      EXPECT_EQ(rank.wait(Deadline::after(60s)), 0);
  }
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  using namespace retort::roles;
  // As in the program: a write to a rank that was killed is an error, not the writer's end.
  std::signal(SIGPIPE, SIG_IGN);
  return retort::parallel::testing::ranks_or_tests(argc, argv,
                                                   {{"teacher", teacher_scenario},
                                                    {"student", student_scenario},
                                                    {"refused", refused_scenario},
                                                    {"failover", failover_scenario},
                                                    {"ties", ties_scenario}});
}
