// The repository keeps its own rules; and each rule is seen to fail on a small tree that breaks it.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/house/house_rules.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"

namespace retort::house {
namespace {
namespace fs = std::filesystem;

TEST(Repository, KeepsTheRules) {
  std::string text;
  for (const auto& violation : find_violations(test::source_folder()))
    text += violation + "\n";
  EXPECT_EQ(text, "");
  EXPECT_GT(count_sources(test::source_folder()), 40u) << "the check looked at almost nothing";
}

TEST(Repository, TableNamesEveryModule) {
  const auto table = read_layer_table(read_file(test::source_folder() / "docs/architecture.md"));
  for (const char* name : {"launch", "recipes", "rewards", "data", "losses", "engines", "roles",
                           "models", "rpc", "parallel", "kernels", "http", "base"})
    EXPECT_TRUE(table.count(name)) << name;
  EXPECT_EQ(table.size(), 13u);
  EXPECT_TRUE(table.at("base").empty());
  EXPECT_EQ(table.at("rpc"), std::set<std::string>{"base"});
  EXPECT_EQ(table.at("kernels"), std::set<std::string>{"base"});
  EXPECT_EQ(table.at("parallel"), (std::set<std::string>{"kernels", "base"}));
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
  EXPECT_EQ(module_of("recipes/rewards/detail/scorer.h"), "rewards");
  EXPECT_EQ(module_of("recipes/data"), "recipes");
  EXPECT_EQ(module_of("README.md"), "");
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i)
    all += text;
  return all;
}

// A tree with two modules that keeps every rule; each test breaks one.
class SmallTree : public test::FolderTest {
 protected:
  void SetUp() override {
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

  void add(const fs::path& path, const std::string& text) { put(folder_ / path, text); }
  void expect_one(const std::string& start, const std::string& part) {
    const auto found = find_violations(folder_);
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? std::string("nothing found")
                                                  : found[found.size() - 1]);
    EXPECT_TRUE(found[0].starts_with(start)) << found[0];
    EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
  }
};

TEST_F(SmallTree, IsClean) {
  EXPECT_TRUE(find_violations(folder_).empty()) << find_violations(folder_)[0];
}

TEST_F(SmallTree, ForbiddenEdge) {
  add("base/error.cc", "#include \"base/error.h\"\n\n  #  include \"rpc/agent.h\"  // why\n");
  expect_one("base/error.cc:3:", "base may not include rpc");
}
TEST_F(SmallTree, PrivateHeaderOfAnotherModule) {
  add("docs/architecture.md", "```\nlaunch -> rpc, base\nrpc -> base\nbase -> std\n```\n");
  add("launch/CMakeLists.txt", "add_executable(retort main.cc)\n");
  add("launch/main.cc", "#include \"rpc/agent.h\"\n");
  EXPECT_TRUE(find_violations(folder_).empty());
  add("launch/main.cc", "#include \"rpc/detail/pipe.h\"\n");
  expect_one("launch/main.cc:1:", "private to rpc");
  add("rpc/wire.h", "#pragma once\n");
  add("launch/main.cc", "#include \"rpc/wire.h\"\n");
  expect_one("launch/main.cc:1:", "private to rpc");
}
TEST_F(SmallTree, KindOfAnEngineOutsideEngines) {
  add("base/error.cc", "#include \"base/error.h\"\n\nbool b = kind == EngineKind::kVllm;\n");
  expect_one("base/error.cc:3:", "ask engines/traits.h");
  add("base/error.cc", "#include \"base/error.h\"\nbool b = parse_enum<EngineKind>(text);\n");
  add("tests/rpc/agent_test.cc", "bool b = kind == EngineKind::kVllm;\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "no kind is named, and a test may";
}
TEST_F(SmallTree, TestsAreSeenByNobody) {
  add("tests/support/world.h", "#pragma once\n");
  add("base/error.cc", "#include \"base/error.h\"\n#include \"tests/support/world.h\"\n");
  expect_one("base/error.cc:2:", "base may not include tests");
}
TEST_F(SmallTree, ModuleOutsideTheTable) {
  add("models/CMakeLists.txt", "retort_module(models SOURCES sizes.cc)\n");
  add("models/sizes.cc", "#include \"base/error.h\"\n");
  expect_one("models/sizes.cc:1:", "not in the table");
}
TEST_F(SmallTree, RelativeInclude) {
  add("rpc/agent.cc", "#include \"rpc/agent.h\"\n#include \"agent.h\"\n");
  expect_one("rpc/agent.cc:2:", "does not exist from the root");
}
TEST_F(SmallTree, OwnHeaderIsNotTheFirst) {
  add("base/error.cc", "#include <string>\n#include \"base/error.h\"\n");
  expect_one("base/error.cc:1:", "not its own header, \"base/error.h\"");
}
TEST_F(SmallTree, TorchInAPrivateHeader) {
  add("rpc/detail/pipe.h", "#pragma once\n#include <torch/torch.h>\n");
  expect_one("rpc/detail/pipe.h:2:", "not in headers");
}
TEST_F(SmallTree, PackageInAPublicHeader) {
  add("rpc/agent.h", "#pragma once\n#include <boost/asio.hpp>\n");
  expect_one("rpc/agent.h:2:", "<boost/asio.hpp>");
}
TEST_F(SmallTree, CerealBesideTheArchive) {
  add("rpc/CMakeLists.txt",
      "retort_module(rpc SOURCES agent.cc detail/pipe.cc HEADERS agent.h archive.h)\n");
  add("rpc/archive.h", "#pragma once\n#include <cereal/cereal.hpp>\n");
  EXPECT_TRUE(find_violations(folder_).empty());
  add("rpc/detail/pipe.cc", "#include \"rpc/detail/pipe.h\"\n#include <cereal/types/list.hpp>\n");
  expect_one("rpc/detail/pipe.cc:2:", "<cereal/types/list.hpp> has no limits");
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
  add("rpc/agent.cc", "#include \"rpc/agent.h\"\n#include \"rpc/wire.h\"\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "a private header of the module";
  add("rpc/agent.h", "#pragma once\n#include \"rpc/wire.h\"\n");
  expect_one("rpc/agent.h:2:", "may not include the private");
}
TEST_F(SmallTree, PackageThatBelongsIntoDetail) {
  add("rpc/wire.h", "#pragma once\n#include <tensorpipe/core/pipe.h>\n");
  expect_one("rpc/wire.h:2:", "belongs into a .cc");
}
TEST_F(SmallTree, LongFile) {
  std::string text = "#include \"base/error.h\"\n";
  for (int i = 1; i < 400; ++i)
    text += "\n";
  add("base/error.cc", text);
  EXPECT_TRUE(find_violations(folder_).empty()) << "400 lines are allowed";
  add("base/error.cc", text + "\n");
  expect_one("base/error.cc:401:", "more than 400");
}
TEST_F(SmallTree, LongTest) {
  add("tests/rpc/agent_test.cc", std::string(500, '\n'));
  EXPECT_TRUE(find_violations(folder_).empty()) << "500 lines are allowed in a test";
  add("tests/rpc/agent_test.cc", std::string(501, '\n'));
  expect_one("tests/rpc/agent_test.cc:501:", "more than 500");
}
TEST_F(SmallTree, EmptyNames) {
  for (const std::string name : {"utils", "helpers", "common", "misc", "string_utils"}) {
    add("rpc/detail/" + name + ".h", "#pragma once\n");
    expect_one("rpc/detail/" + name + ".h:1:", "says nothing");
    fs::remove(folder_ / ("rpc/detail/" + name + ".h"));
  }
  add("rpc/detail/common_vocabulary.h", "#pragma once\n");
  EXPECT_TRUE(find_violations(folder_).empty());
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
TEST_F(SmallTree, WideCode) {
  for (const std::string path :
       {"base/error.h", "bench/plot.py", "python/retort/run.py", "recipes/configs/run.sh",
        "models/text/lib.rs", "cmake/Tree.cmake", "dev", ".ci/run"}) {
    const std::string comment = path == "base/error.h" ? "#pragma once\n// " : "\n#  ";
    add(path, comment + std::string(97, 'x') + "\n");
    EXPECT_TRUE(find_violations(folder_).empty()) << "100 columns are allowed";
    add(path, comment + std::string(98, 'x') + "\n");
    expect_one(path + ":2:", "more than 100 columns");
    add(path, "#pragma once\n");
  }
}
TEST_F(SmallTree, WidthCountsCharacters) {
  std::string text = "#pragma once\n//";
  for (int i = 0; i < 98; ++i)
    text += "é";
  add("base/error.h", text + "\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "100 characters in 198 bytes";
  add("base/error.h", text + "é\n");
  expect_one("base/error.h:2:", "more than 100 columns");
}
TEST_F(SmallTree, WideAddressIsAllowed) {
  const std::string address = "https://example.org/" + std::string(100, 'x');
  add("base/error.h", "#pragma once\n// " + address + "\n");
  EXPECT_TRUE(find_violations(folder_).empty());
  add("base/error.h", "#pragma once\n// see " + address + "\n");
  expect_one("base/error.h:2:", "more than 100 columns");
}
TEST_F(SmallTree, WideDocument) {
  for (const std::string path : {"README.md", "docs/losses.md", "docs/recipes/sft.md"}) {
    add(path, std::string(120, 'x') + "\n");
    EXPECT_TRUE(find_violations(folder_).empty()) << "120 columns are allowed in a document";
    add(path, "\n" + std::string(121, 'x') + "\n");
    expect_one(path + ":2:", "more than 120 columns");
    add(path, "\n");
  }
}
TEST_F(SmallTree, WideTableOfADocument) {
  const std::string row = "| " + std::string(120, 'x') + " |\n";
  add("docs/recipe.md", row);
  EXPECT_TRUE(find_violations(folder_).empty()) << "a program writes these tables";
  add("docs/recipe.md", std::string(121, 'x') + "\n");
  expect_one("docs/recipe.md:1:", "more than 120 columns");
  add("docs/recipe.md", "\n");
  add("docs/losses.md", row);
  expect_one("docs/losses.md:1:", "more than 120 columns");
}
TEST_F(SmallTree, BodyWithoutABlankLine) {
  const std::string begin = "#include \"base/error.h\"\nvoid f(int x)\n    noexcept {\n";
  add("base/error.cc", begin + repeated("  x = '{';  // }\n", 40) + "}\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "40 lines are allowed";
  add("base/error.cc", begin + repeated("  x = '{';  // }\n", 41) + "}\n");
  expect_one("base/error.cc:3:", "a body of 41 lines without a blank line");
  add("base/error.cc", begin + repeated("  x = 1;\n", 40) + "\n  x = 2;\n}\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "a blank line is enough";
}
TEST_F(SmallTree, BodyOfAMemberFunction) {
  add("base/error.cc", "#include \"base/error.h\"\nnamespace a {\nstruct S {\n  int i = 0;\n\n" +
                           std::string("  S(int b) : b_{b}, c_(b) {\n") +
                           repeated("    if (b) {\n      f(R\"({)\");\n    }\n", 14) +
                           "  }\n};\n}  // namespace a\n");
  expect_one("base/error.cc:6:", "a body of 42 lines");
}
TEST_F(SmallTree, BlankLineOfAnotherBody) {
  add("base/error.cc", "#include \"base/error.h\"\nint f() {\n\n  return 1;\n}\n\nint g() {\n" +
                           repeated("  f();\n", 41) + "}\n\nint h() {\n\n  return 1;\n}\n");
  expect_one("base/error.cc:7:", "a body of 41 lines");
}
TEST_F(SmallTree, TablesHaveNoParagraphs) {
  const std::string rows = repeated("      {\"name\", [](int x) { return f(x); }},\n", 50);
  const std::string begin = "#include \"base/error.h\"\n";
  add("base/error.cc", begin + "const std::vector<Row> kRows{\n" + rows + "};\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "a table of the file";
  add("base/error.cc", begin + "std::vector<Row> rows() {\n  return {\n" + rows + "  };\n}\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "a table that a function returns";
  add("base/error.cc", begin + "int f() {\n  const std::vector<Row> kRows = {\n" + rows + "  };\n" +
                           repeated("  f();\n", 41) + "}\n");
  expect_one("base/error.cc:2:", "without a blank line");
}
TEST_F(SmallTree, CitedDocumentIsMissing) {
  // In two parts, as this file is checked as well.
  const std::string docs = "docs";
  add("base/error.h", "#pragma once\n// See " + docs + "/architecture.md.\n");
  EXPECT_TRUE(find_violations(folder_).empty());
  add("base/error.h", "#pragma once\n// See " + docs + "/nowhere.md.\n");
  expect_one("base/error.h:2:", "nowhere.md, which does not exist");
  add("base/error.h", "#pragma once\n");
  add("README.md", "[guide](" + docs + "/guide.md)\n");
  expect_one("README.md:1:", "guide.md, which does not exist");
}
TEST_F(SmallTree, CitedDesignDocument) {
  for (const std::string code : {"A3", "4.2", "B"})
    for (const std::string name : {"SYSTEMS", "INTERFACE", "STYLE", "ARCHITECTURE", "STYLE.md"}) {
      add("base/error.h", "#pragma once\n// " + name + " " + code + " says so.\n");
      expect_one("base/error.h:2:", "not in the repository");
    }
  add("base/error.h", "#pragma once\n");
  add("cmake/Tree.cmake", "target_link_libraries(a INTERFACE Threads::Threads)\n");
  EXPECT_TRUE(find_violations(folder_).empty()) << "a keyword of CMake";
}

}  // namespace
}  // namespace retort::house
