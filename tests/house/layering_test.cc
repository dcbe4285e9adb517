// The repository keeps its own rules; and each rule about one file is seen to fail on a small tree
// that breaks it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "tests/house/house_rules.h"
#include "tests/house/layers.h"
#include "tests/house/rooms.h"
#include "tests/house/small_tree.h"
#include "tests/support/source_folder.h"

namespace retort::house {
namespace {
namespace fs = std::filesystem;

// This tree keeps every rule, but for these small headers.
const Rules kKept{
    .rent_exceptions =
        {
            {"engines/kserve/requests.h", "what a server is asked has its file in every engine's"},
            {"models/config/classifier.h", "with it config.cc would come to 480 lines"},
            {"models/config/rope_keys.h", "with it config.cc would be longer than 500 lines"},
            {"models/config/windows.h", "with it config.cc would be longer than 500 lines"},
            {"parallel/detail/sockets.h", "hides the system's sockets from a file about keys"},
            {"recipes/data/detail/plain_text.h", "with it answer_tokens.cc would pass 500 lines"},
            {"recipes/distill/write_cache.h", "with it setup.cc would be longer than 500 lines"},
            {"recipes/document/sft_options.h", "every block of a recipe has its file"},
            {"recipes/grpo/checks.h", "the recipes' folders have the same names"},
            {"recipes/grpo/self_check.h", "the recipes' folders have the same names"},
            {"recipes/kto/audit.h", "the recipes' folders have the same names"},
            {"recipes/kto/self_check.h", "the recipes' folders have the same names"},
            {"recipes/reward_model/self_check.h", "the recipes' folders have the same names"},
        },
};

// With RETORT_UPDATE_DOCS=1 the block is written first, unless rooms include each other.
TEST(Repository, BlockOfRoomsIsInStep) {
  const fs::path path = test::source_folder() / "docs/architecture.md";
  const bool is_written = std::getenv("RETORT_UPDATE_DOCS");
  const std::string text = with_room_block(read_file(path), room_block(test::source_folder()));
  if (is_written) write_file_atomically(path, text);
  EXPECT_EQ(read_file(path), text) << "write it anew: RETORT_UPDATE_DOCS=1 ctest -R layering_test";
}

TEST(Repository, KeepsTheRules) {
  std::string text;
  for (const auto& violation : find_violations(test::source_folder(), kKept))
    text += violation + "\n";
  EXPECT_EQ(text, "");
  EXPECT_GT(count_sources(test::source_folder()), 40u) << "the check looked at almost nothing";
}

TEST(Repository, TableNamesEveryModule) {
  const auto table = read_layer_table(read_file(test::source_folder() / "docs/architecture.md"));
  for (const char* name : {"launch", "recipes", "rewards", "data", "losses", "engines",
                           "environments", "roles", "models", "rpc", "parallel", "kernels", "http",
                           "base"})
    EXPECT_TRUE(table.count(name)) << name;
  EXPECT_EQ(table.size(), 14u);
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

TEST_F(SmallTree, IsClean) { EXPECT_TRUE(violations().empty()) << violations()[0]; }

TEST_F(SmallTree, ForbiddenEdge) {
  add("base/error.cc", "#include \"base/error.h\"\n\n  #  include \"rpc/agent.h\"  // why\n");
  expect_one("base/error.cc:3:", "base may not include rpc");
}
TEST_F(SmallTree, PrivateHeaderOfAnotherModule) {
  add("docs/architecture.md", "```\nlaunch -> rpc, base\nrpc -> base\nbase -> std\n```\n");
  add("launch/CMakeLists.txt", "add_executable(retort main.cc)\n");
  add("launch/main.cc", "#include \"rpc/agent.h\"\n");
  EXPECT_TRUE(violations().empty());
  add("launch/main.cc", "#include \"rpc/detail/pipe.h\"\n");
  expect_one("launch/main.cc:1:", "private to rpc");
  add("rpc/wire.h", "#pragma once\n");
  add("launch/main.cc", "#include \"rpc/wire.h\"\n");
  expect_one("launch/main.cc:1:", "private to rpc");
}
TEST_F(SmallTree, KindOfAnEngineOutsideEngines) {
  add("base/error.cc", "#include \"base/error.h\"\n\nbool b = kind == EngineKind::kVllm;\n");
  expect_one("base/error.cc:3:", "ask engines/contract/traits.h");
  add("base/error.cc", "#include \"base/error.h\"\nbool b = parse_enum<EngineKind>(text);\n");
  add("tests/rpc/agent_test.cc", "bool b = kind == EngineKind::kVllm;\n");
  EXPECT_TRUE(violations().empty()) << "no kind is named, and a test may";
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
  EXPECT_TRUE(violations().empty());
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
  EXPECT_TRUE(violations().empty()) << "a private header of the module";
  add("rpc/agent.h", "#pragma once\n#include \"rpc/wire.h\"\n");
  expect_one("rpc/agent.h:2:", "may not include the private");
}
TEST_F(SmallTree, PackageThatBelongsIntoDetail) {
  add("rpc/wire.h", "#pragma once\n#include <tensorpipe/core/pipe.h>\n");
  expect_one("rpc/wire.h:2:", "belongs into a .cc");
}
TEST_F(SmallTree, LongFile) {
  for (const std::string path : {"base/error.cc", "tests/rpc/agent_test.cc"}) {
    const std::string first = "#include \"base/error.h\"\n";
    add(path, first + std::string(499, '\n'));
    EXPECT_TRUE(violations().empty()) << "500 lines are allowed";
    add(path, first + std::string(500, '\n'));
    expect_one(path + ":501:", "more than 500");
    add(path, first);
  }
}
TEST_F(SmallTree, EmptyNames) {
  for (const std::string name : {"utils", "helpers", "common", "misc", "string_utils"}) {
    add("rpc/detail/" + name + ".h", "#pragma once\n");
    expect_one("rpc/detail/" + name + ".h:1:", "says nothing");
    fs::remove(folder_ / ("rpc/detail/" + name + ".h"));
  }
  add("rpc/detail/common_vocabulary.h", "#pragma once\n");
  EXPECT_TRUE(violations().empty());
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
    EXPECT_TRUE(violations().empty()) << "100 columns are allowed";
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
  EXPECT_TRUE(violations().empty()) << "100 characters in 198 bytes";
  add("base/error.h", text + "é\n");
  expect_one("base/error.h:2:", "more than 100 columns");
}
TEST_F(SmallTree, WideAddressIsAllowed) {
  const std::string address = "https://example.org/" + std::string(100, 'x');
  add("base/error.h", "#pragma once\n// " + address + "\n");
  EXPECT_TRUE(violations().empty());
  add("base/error.h", "#pragma once\n// see " + address + "\n");
  expect_one("base/error.h:2:", "more than 100 columns");
}
TEST_F(SmallTree, WideDocument) {
  for (const std::string path : {"README.md", "docs/losses.md", "docs/recipes/sft.md"}) {
    add(path, std::string(120, 'x') + "\n");
    EXPECT_TRUE(violations().empty()) << "120 columns are allowed in a document";
    add(path, "\n" + std::string(121, 'x') + "\n");
    expect_one(path + ":2:", "more than 120 columns");
    add(path, "\n");
  }
}
TEST_F(SmallTree, WideTableOfADocument) {
  const std::string row = "| " + std::string(120, 'x') + " |\n";
  add("docs/recipe.md", row);
  EXPECT_TRUE(violations().empty()) << "a program writes these tables";
  add("docs/recipe.md", std::string(121, 'x') + "\n");
  expect_one("docs/recipe.md:1:", "more than 120 columns");
  add("docs/recipe.md", "\n");
  add("docs/losses.md", row);
  expect_one("docs/losses.md:1:", "more than 120 columns");
}
TEST_F(SmallTree, CitedDocumentIsMissing) {
  // In two parts, as this file is checked as well.
  const std::string docs = "docs";
  add("base/error.h", "#pragma once\n// See " + docs + "/architecture.md.\n");
  EXPECT_TRUE(violations().empty());
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
  EXPECT_TRUE(violations().empty()) << "a keyword of CMake";
}

}  // namespace
}  // namespace retort::house
