// The repository keeps its own rules; and each rule is seen to fail on a small tree that breaks it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "tests/house/house_rules.h"

namespace retort::house {
namespace {
namespace fs = std::filesystem;

fs::path repository() {
  const char* root = std::getenv("RETORT_SOURCE_DIR");
  return root ? fs::path(root) : fs::current_path();
}

TEST(Repository, KeepsTheRules) {
  std::string text;
  for (const auto& violation : find_violations(repository()))
    text += violation + "\n";
  EXPECT_EQ(text, "");
  EXPECT_GT(count_sources(repository()), 40u) << "the check looked at almost nothing";
}

TEST(Repository, TableNamesEveryModule) {
  const auto table = read_layer_table(read_file(repository() / "docs/architecture.md"));
  for (const char* name : {"launch", "recipes", "rewards", "data", "losses", "roles", "models",
                           "rpc", "parallel", "http", "base"})
    EXPECT_TRUE(table.count(name)) << name;
  EXPECT_EQ(table.size(), 11u);
  EXPECT_TRUE(table.at("base").empty());
  EXPECT_EQ(table.at("rpc"), std::set<std::string>{"base"});
  EXPECT_EQ(table.at("parallel"), std::set<std::string>{"base"});
}

TEST(LayerTable, ReadsEdgesAndRefusesNonsense) {
  const auto table = read_layer_table(
      "text\n```\nb -> a     one, two words\na -> std\nc -> a, b\n```\n```\nd -> a\n```\n");
  EXPECT_EQ(table, (LayerTable{{"a", {}}, {"b", {"a"}}, {"c", {"a", "b"}}}));
  EXPECT_THROW(read_layer_table("nothing here"), Error);
  EXPECT_THROW(read_layer_table("```\nb -> a\n```"), Error) << "a has no line";
  EXPECT_THROW(read_layer_table("```\na -> b\nb -> a\n```"), Error) << "a cycle";
}

TEST(ModuleOf, FollowsTheFolders) {
  EXPECT_EQ(module_of("rpc/agent.h"), "rpc");
  EXPECT_EQ(module_of("rpc/detail/frames.h"), "rpc");
  EXPECT_EQ(module_of("recipes/sft/objective.h"), "recipes");
  EXPECT_EQ(module_of("recipes/data/jsonl.h"), "data");
  EXPECT_EQ(module_of("recipes/losses/detail/row.h"), "losses");
  EXPECT_EQ(module_of("recipes/rewards/detail/child.h"), "rewards");
  EXPECT_EQ(module_of("recipes/data"), "recipes");
  EXPECT_EQ(module_of("README.md"), "");
}

// A tree with two modules that keeps every rule; each test breaks one.
class SmallTree : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("retort-house-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    add("docs/architecture.md", "```\nrpc -> base     calls\nbase -> std\n```\n");
    add("base/CMakeLists.txt", "retort_module(base SOURCES error.cc HEADERS error.h)\n");
    add("base/error.h", "#pragma once\n#include <string>\n");
    add("base/error.cc", "#include \"base/error.h\"\n");
    add("rpc/CMakeLists.txt",
        "retort_module(rpc SOURCES agent.cc detail/pipe.cc HEADERS agent.h)\n");
    add("rpc/agent.h", "#pragma once\n#include <ATen/core/Tensor.h>\n#include \"base/error.h\"\n");
    add("rpc/agent.cc",
        "#include \"rpc/agent.h\"\n#include <torch/torch.h>\n#include \"rpc/detail/pipe.h\"\n");
    add("rpc/detail/pipe.h", "#pragma once\n#include <tensorpipe/tensorpipe.h>\n");
    add("rpc/detail/pipe.cc", "#include \"rpc/detail/pipe.h\"\n");
    add("tests/rpc/CMakeLists.txt", "retort_test(agent_test SOURCES agent_test.cc)\n");
    add("tests/rpc/agent_test.cc", "#include \"rpc/detail/pipe.h\"\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void add(const fs::path& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void expect_one(const std::string& start, const std::string& part) {
    const auto found = find_violations(root_);
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? std::string("nothing found")
                                                  : found[found.size() - 1]);
    EXPECT_TRUE(found[0].starts_with(start)) << found[0];
    EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
  }

  fs::path root_;
};

TEST_F(SmallTree, IsClean) {
  EXPECT_TRUE(find_violations(root_).empty()) << find_violations(root_)[0];
}

TEST_F(SmallTree, ForbiddenEdge) {
  add("base/error.cc", "#include \"base/error.h\"\n\n  #  include \"rpc/agent.h\"  // why\n");
  expect_one("base/error.cc:3:", "base may not include rpc");
}
TEST_F(SmallTree, PrivateHeaderOfAnotherModule) {
  add("docs/architecture.md", "```\nlaunch -> rpc, base\nrpc -> base\nbase -> std\n```\n");
  add("launch/CMakeLists.txt", "add_executable(retort main.cc)\n");
  add("launch/main.cc", "#include \"rpc/agent.h\"\n");
  EXPECT_TRUE(find_violations(root_).empty());
  add("launch/main.cc", "#include \"rpc/detail/pipe.h\"\n");
  expect_one("launch/main.cc:1:", "private to rpc");
  add("rpc/wire.h", "#pragma once\n");
  add("launch/main.cc", "#include \"rpc/wire.h\"\n");
  expect_one("launch/main.cc:1:", "private to rpc");
}
TEST_F(SmallTree, TestsAreSeenByNobody) {
  add("tests/support/world.h", "#pragma once\n");
  add("base/error.cc", "#include \"tests/support/world.h\"\n");
  expect_one("base/error.cc:1:", "base may not include tests");
}
TEST_F(SmallTree, ModuleOutsideTheTable) {
  add("models/CMakeLists.txt", "retort_module(models SOURCES config.cc)\n");
  add("models/config.cc", "#include \"base/error.h\"\n");
  expect_one("models/config.cc:1:", "not in the table");
}
TEST_F(SmallTree, RelativeInclude) {
  add("rpc/detail/pipe.cc", "#include \"pipe.h\"\n");
  expect_one("rpc/detail/pipe.cc:1:", "does not exist from the root");
}
TEST_F(SmallTree, TorchInAPrivateHeader) {
  add("rpc/detail/pipe.h", "#pragma once\n#include <torch/torch.h>\n");
  expect_one("rpc/detail/pipe.h:2:", "not in headers");
}
TEST_F(SmallTree, PackageInAPublicHeader) {
  add("rpc/agent.h", "#pragma once\n#include <boost/asio.hpp>\n");
  expect_one("rpc/agent.h:2:", "<boost/asio.hpp>");
}
TEST_F(SmallTree, PrivateInAPublicHeader) {
  add("rpc/agent.h", "#pragma once\n#include \"rpc/detail/pipe.h\"\n");
  expect_one("rpc/agent.h:2:", "may not include the private");
}
TEST_F(SmallTree, UnlistedSource) {
  add("tests/rpc/CMakeLists.txt",
      "retort_test(other SOURCES other_agent_test.cc)  # agent_test.cc\n");
  expect_one("tests/rpc/agent_test.cc:1:", "never compiled");
}
TEST_F(SmallTree, UnlistedHeaderIsPrivate) {
  add("rpc/wire.h", "#pragma once\n#include <boost/asio.hpp>\n");
  add("rpc/agent.cc", "#include \"rpc/wire.h\"\n");
  EXPECT_TRUE(find_violations(root_).empty()) << "a private header of the module";
  add("rpc/agent.h", "#pragma once\n#include \"rpc/wire.h\"\n");
  expect_one("rpc/agent.h:2:", "may not include the private");
}
TEST_F(SmallTree, PackageThatBelongsIntoDetail) {
  add("rpc/wire.h", "#pragma once\n#include <tensorpipe/core/pipe.h>\n");
  expect_one("rpc/wire.h:2:", "belongs into a .cc");
}
TEST_F(SmallTree, LongFile) {
  std::string text = "#include \"base/error.h\"\n";
  for (int i = 1; i < 500; ++i)
    text += "\n";
  add("base/error.cc", text);
  EXPECT_TRUE(find_violations(root_).empty()) << "500 lines are allowed";
  add("base/error.cc", text + "\n");
  expect_one("base/error.cc:501:", "more than 500");
}
TEST_F(SmallTree, LongTest) {
  add("tests/rpc/agent_test.cc", std::string(600, '\n'));
  EXPECT_TRUE(find_violations(root_).empty()) << "600 lines are allowed in a test";
  add("tests/rpc/agent_test.cc", std::string(601, '\n'));
  expect_one("tests/rpc/agent_test.cc:601:", "more than 600");
}
TEST_F(SmallTree, EmptyNames) {
  for (const std::string name : {"utils", "helpers", "common", "misc", "string_utils"}) {
    add("rpc/detail/" + name + ".h", "#pragma once\n");
    expect_one("rpc/detail/" + name + ".h:1:", "says nothing");
    fs::remove(root_ / ("rpc/detail/" + name + ".h"));
  }
  add("rpc/detail/common_vocabulary.h", "#pragma once\n");
  EXPECT_TRUE(find_violations(root_).empty());
}
TEST_F(SmallTree, ShadowingName) {
  add("rpc/CMakeLists.txt",
      "retort_module(rpc SOURCES agent.cc detail/pipe.cc HEADERS agent.h netdb.h)\n");
  add("rpc/netdb.h", "#pragma once\n");
  expect_one("rpc/netdb.h:1:", "hides a system header");
}
TEST_F(SmallTree, NoPragmaOnce) {
  add("base/error.h", "#include <string>\n");
  expect_one("base/error.h:1:", "#pragma once");
}

}  // namespace
}  // namespace retort::house
