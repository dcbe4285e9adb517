#include "launch/document/yaml_locations.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using recipes::KeyPath;

class Places : public testing::Test {
 protected:
  std::string refusal(const KeyPath& path) const {
    return message_of([&] { places_.refuse(path, "bad"); });
  }

  launch::YamlNode root_ = launch::parse_yaml(
      "steps: 3\n"
      "teachers:\n"
      "  - {role: a, weight: 0.5}\n"
      "  - role: b\n"
      "    when:\n"
      "      domain: law\n"
      "    note: null\n",
      "r.yaml");
  launch::YamlPlaces places_{root_};
};

TEST_F(Places, WrittenKeys) {
  EXPECT_TRUE(places_.written({"steps"}));
  EXPECT_TRUE(places_.written({"teachers"}));
  EXPECT_FALSE(places_.written({"step"}));
  EXPECT_FALSE(places_.written({"steps", "more"}));
}

TEST_F(Places, WrittenKeysOfListItems) {
  for (const KeyPath& path :
       {KeyPath{"teachers", "0"}, KeyPath{"teachers", "0", "weight"},
        KeyPath{"teachers", "1", "role"}, KeyPath{"teachers", "1", "when", "domain"}})
    EXPECT_TRUE(places_.written(path)) << path.back();
  for (const KeyPath& path : {KeyPath{"teachers", "0", "when"}, KeyPath{"teachers", "1", "weight"},
                              KeyPath{"teachers", "1", "note"}, KeyPath{"teachers", "2"},
                              KeyPath{"teachers", "2", "role"}, KeyPath{"teachers", "role"},
                              KeyPath{"teachers", "-1"}, KeyPath{"teachers", "0x"}})
    EXPECT_FALSE(places_.written(path)) << path.back();
}

TEST_F(Places, RefusalsNameTheDeepestKeyThatWasWritten) {
  EXPECT_EQ(refusal({"teachers", "0", "weight"}), "r.yaml:3: teachers.0.weight: bad");
  EXPECT_EQ(refusal({"teachers", "1", "when", "domain"}), "r.yaml:6: teachers.1.when.domain: bad");
  EXPECT_EQ(refusal({"teachers", "1", "weight"}), "r.yaml:4: teachers.1.weight: bad");
  EXPECT_EQ(refusal({"teachers", "2", "role"}), "r.yaml:2: teachers.2.role: bad");
  EXPECT_EQ(refusal({"teachers", "role"}), "r.yaml:2: teachers.role: bad");
}

TEST_F(Places, ItemsOfTheCommandLine) {
  launch::apply_override(root_, "teachers.1.weight=0.5");
  EXPECT_TRUE(places_.written({"teachers", "1", "weight"}));
  EXPECT_EQ(refusal({"teachers", "1", "weight"}), "command line: teachers.1.weight: bad");

  launch::apply_override(root_, "teachers.0.weight=null");
  EXPECT_FALSE(places_.written({"teachers", "0", "weight"}));
}

}  // namespace
}  // namespace retort::test
