#include "base/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace retort {
namespace {

TEST(JsonQuote, EscapesWhatJsonAsksFor) {
  EXPECT_EQ(json_quote("plain"), "\"plain\"");
  EXPECT_EQ(json_quote("a\"b\\c\nd\re\tf"), R"("a\"b\\c\nd\re\tf")");
  EXPECT_EQ(json_quote(std::string_view("\0\x01\x1f", 3)), R"("\u0000\u0001\u001f")");
  EXPECT_EQ(json_quote("größe 数"), "\"größe 数\"");
}

TEST(JsonQuote, ReadsBackForEveryAsciiByte) {
  std::string all;
  for (int c = 0; c < 128; ++c)
    all += static_cast<char>(c);
  EXPECT_EQ(nlohmann::json::parse(json_quote(all)).get<std::string>(), all);
}

TEST(JsonNumber, IsTheShortestThatReadsBack) {
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(2), "2");
  for (double value : {1.0 / 3, 1e300, 5e-324, -0.0, 123456789.125, std::nextafter(1.0, 2.0)})
    EXPECT_EQ(nlohmann::json::parse(json_number(value)).get<double>(), value) << json_number(value);
}

TEST(JsonNumber, IsNullWhereJsonHasNoNumber) {
  EXPECT_EQ(json_number(std::nan("")), "null");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonNesting, CountsBracketsOutsideOfStrings) {
  EXPECT_EQ(json_nesting("1"), 0);
  EXPECT_EQ(json_nesting(R"({"a": [1, {"b": []}], "c": {}})"), 4);
  EXPECT_EQ(json_nesting(R"(["[[[", "\"[[", "\\", []])"), 2);
  EXPECT_EQ(json_nesting(std::string(100'000, '[')), 100'000);
}

TEST(JsonLine, KeepsOrderAndTypes) {
  JsonLine line;
  line.add("step", int64_t{7})
      .add("loss", 0.5)
      .add("done", true)
      .add("name", "a \"b\"")
      .raw("list", "[1, 2]")
      .add("bad", std::nan(""));
  EXPECT_EQ(
      line.str(),
      R"({"step": 7, "loss": 0.5, "done": true, "name": "a \"b\"", "list": [1, 2], "bad": null})");
  EXPECT_TRUE(nlohmann::json::accept(line.str()));
  EXPECT_EQ(JsonLine().str(), "{}");
}

TEST(JsonLine, KeepsLargeIntegersExactly) {
  EXPECT_EQ(JsonLine().add("n", std::numeric_limits<int64_t>::max()).str(),
            R"({"n": 9223372036854775807})");
}

}  // namespace
}  // namespace retort
