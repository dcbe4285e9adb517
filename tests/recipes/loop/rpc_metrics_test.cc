// Calls to other roles as metrics: names, what a row counts, sums over ranks.
#include "recipes/run/metrics/rpc_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "parallel/world.h"
#include "tests/rpc/echo.h"

namespace retort::recipes {
namespace {

using rpc::testing::agent_options;
using rpc::testing::kEcho;
using rpc::testing::kFail;
using rpc::testing::soon;

using Numbers = std::map<std::string, double>;

Numbers numbers_of(const MetricsRow& row) {
  Numbers numbers;
  for (const auto& [name, value] : row.values)
    numbers[name] = std::visit([](auto number) { return static_cast<double>(number); }, value);
  return numbers;
}

Numbers next_row(RpcMetrics& metrics, parallel::World& world) {
  MetricsRow row;
  metrics.add_to(row, world.all());
  return numbers_of(row);
}

// Two replicas of a teacher.
class RpcMetricsTest : public ::testing::Test {
 protected:
  RpcMetricsTest() {
    for (rpc::Agent* teacher : {&first_, &second_})
      rpc::testing::serve_echo(*teacher, handlers_.queue);
  }
  void connect(rpc::Agent& student) {
    student.connect("teacher/0", first_.address(), soon());
    student.connect("teacher/1", second_.address(), soon());
  }
  static void echo(rpc::Agent& student, const std::string& teacher) {
    student.call(teacher, kEcho, {.text = "text", .sleep_ms = 5}).get(soon());
  }

  rpc::testing::HandlerThread handlers_;
  rpc::Agent first_{agent_options("teacher/0")}, second_{agent_options("teacher/1")};
};

TEST_F(RpcMetricsTest, ARowTellsOfARoleSinceTheRowBefore) {
  parallel::World alone({.role = "student", .layout = {}});
  rpc::Agent student(agent_options("student/0"));
  connect(student);
  RpcMetrics metrics(student);
  echo(student, "teacher/0");
  echo(student, "teacher/1");
  echo(student, "teacher/1");
  Numbers row = next_row(metrics, alone);
  const std::string prefix = "rpc/teacher/test.echo/";
  EXPECT_EQ(row.size(), 12u);
  EXPECT_EQ(row.at(prefix + "calls"), 3);
  EXPECT_EQ(row.at(prefix + "errors"), 0);
  EXPECT_GT(row.at(prefix + "handler_p50"), 0.0045);
  EXPECT_GE(row.at(prefix + "handler_p99"), row.at(prefix + "handler_p50"));
  EXPECT_GE(row.at(prefix + "queue_p99"), row.at(prefix + "queue_p50"));
  EXPECT_GT(row.at(prefix + "wire_p99"), 0);
  EXPECT_GT(row.at(prefix + "bytes_sent"), 3 * 30);
  EXPECT_GT(row.at(prefix + "bytes_received"), 3 * 30);
  EXPECT_EQ(row.at(prefix + "credit_waits"), 0);
  EXPECT_EQ(row.at(prefix + "credit_wait_time"), 0);

  EXPECT_EQ(next_row(metrics, alone), Numbers{}) << "nothing was called";
  auto failed = student.call("teacher/0", kFail, {0});
  rpc::testing::code_of(failed);
  row = next_row(metrics, alone);
  EXPECT_EQ(row.at("rpc/teacher/test.fail/errors"), 1);
  EXPECT_FALSE(row.contains(prefix + "calls"));
}

TEST_F(RpcMetricsTest, RanksAreAddedUp) {
  parallel::StoreServer store("127.0.0.1");
  std::vector<Numbers> rows(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < rows.size(); ++rank)
    ranks.emplace_back([&, rank] {
      parallel::World::Options options{.role = "student", .layout = {.dp = 2}};
      options.rank = static_cast<int64_t>(rank);
      options.store_port = store.port();
      options.store_prefix = "run/student/0/";
      parallel::World world(std::move(options));
      rpc::Agent student(agent_options("student/" + std::to_string(rank)));
      connect(student);
      RpcMetrics metrics(student);

      // The ranks do not call the same methods.
      echo(student, "teacher/0");
      if (rank == 1) {
        echo(student, "teacher/1");
        auto failed = student.call("teacher/1", kFail, {0});
        rpc::testing::code_of(failed);
      }
      rows[rank] = next_row(metrics, world);
    });
  for (std::thread& rank : ranks)
    rank.join();

  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_EQ(rows[0].at("rpc/teacher/test.echo/calls"), 3);
  EXPECT_EQ(rows[0].at("rpc/teacher/test.fail/errors"), 1);
}

}  // namespace
}  // namespace retort::recipes
