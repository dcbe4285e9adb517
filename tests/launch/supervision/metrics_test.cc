// metrics.jsonl: what is written, what a resumed run keeps, and following it while it grows.
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "launch/status/metrics_tail.h"
#include "recipes/run/metrics/metrics_writer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using recipes::MetricsRow;

class MetricsTest : public FolderTest {
 protected:
  std::filesystem::path metrics() const { return folder_ / "metrics.jsonl"; }
  static std::string row(int step) {
    return "{\"step\": " + std::to_string(step) + ", \"loss\": 1}\n";
  }
};

TEST_F(MetricsTest, OneObjectALineInOrder) {
  {
    recipes::MetricsWriter writer(folder_);
    writer.write(
        MetricsRow{.step = 1, .values = {}}.add("num_tokens", int64_t{1} << 40).add("loss", 0.1));
    writer.write(
        MetricsRow{.step = 2, .values = {}}.add("loss", std::numeric_limits<double>::quiet_NaN()));
  }
  EXPECT_EQ(get(metrics()),
            "{\"step\": 1, \"num_tokens\": 1099511627776, \"loss\": 0.1}\n{\"step\": 2, \"loss\": "
            "null}\n");
  { recipes::MetricsWriter(folder_).write(MetricsRow{.step = 3, .values = {}}.add("loss", 0.5)); }
  EXPECT_NE(get(metrics()).find("\"step\": 1"), std::string::npos) << "a resumed run appends";
  EXPECT_FALSE(std::filesystem::is_empty(folder_ / "tensorboard"));
}

TEST_F(MetricsTest, LaterRowsMoveToTheOldFile) {
  put(metrics(), row(1) + row(2) + row(2) + row(3) + row(4));
  recipes::cut_back_metrics(folder_, 2);
  EXPECT_EQ(get(metrics()), row(1) + row(2) + row(2));
  EXPECT_EQ(get(folder_ / "metrics.jsonl.1"), row(3) + row(4));
  recipes::cut_back_metrics(folder_, 2);
  EXPECT_EQ(get(folder_ / "metrics.jsonl.1"), row(3) + row(4)) << "idempotent";
  put(metrics(), row(1) + row(2) + row(5));
  recipes::cut_back_metrics(folder_, 2);
  EXPECT_EQ(get(folder_ / "metrics.jsonl.1"), row(3) + row(4) + row(5)) << "old rows gather";
  recipes::cut_back_metrics(folder_, 0);
  EXPECT_EQ(get(metrics()), "");
}

TEST_F(MetricsTest, ARowCutShortMovesAway) {
  for (const std::string tail : {"{\"step\": 2, \"lo", "{\"step\": 2, \"loss\": 1}", "garbage\n"}) {
    put(metrics(), row(1) + tail);
    recipes::cut_back_metrics(folder_, 10);
    EXPECT_EQ(get(metrics()), row(1)) << tail;
  }
}

TEST_F(MetricsTest, ADamagedRowInTheMiddleIsNotDroppedSilently) {
  put(metrics(), row(1) + "{\"loss\": 1}\n" + row(3));
  const std::string message =
      message_of([&] { recipes::cut_back_metrics(folder_, 1); }, ErrorCode::kCorrupt);
  EXPECT_NE(message.find("metrics.jsonl:2:"), std::string::npos) << message;
  EXPECT_EQ(get(metrics()), row(1) + "{\"loss\": 1}\n" + row(3));
}

TEST_F(MetricsTest, NothingToCutIsFine) {
  recipes::cut_back_metrics(folder_, 5);
  EXPECT_FALSE(std::filesystem::exists(metrics()));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "metrics.jsonl.1"));
}

TEST_F(MetricsTest, TailGivesWholeNewRowsOnce) {
  put(metrics(), row(1));
  launch::MetricsTail tail(metrics());
  EXPECT_TRUE(tail.poll().empty()) << "rows from before are skipped";
  std::ofstream file(metrics(), std::ios::app);
  file << row(2) << "{\"step\": 3, \"loss\": nul" << std::flush;
  auto rows = tail.poll();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].step, 2);
  EXPECT_EQ(rows[0].values.at("loss"), 1.0);
  file << "l}\n" << std::flush;
  rows = tail.poll();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].step, 3);
  EXPECT_TRUE(std::isnan(rows[0].values.at("loss")));
  EXPECT_TRUE(tail.poll().empty());
}

}  // namespace
}  // namespace retort::test
