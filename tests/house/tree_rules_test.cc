// Each rule about how files stand to one another is seen to fail: rooms, packages, headers.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "tests/house/house_rules.h"
#include "tests/house/layers.h"
#include "tests/house/rooms.h"
#include "tests/house/small_tree.h"
#include "tests/support/thrown.h"

namespace retort::house {
namespace {
namespace fs = std::filesystem;

TEST(Circles, PairsComeFirst) {
  const LayerTable table{{"a", {"b"}}, {"b", {"a", "c"}}, {"c", {"d"}}, {"d", {"b"}}};
  EXPECT_EQ(find_circles(table),
            (std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "c", "d"}}));
  EXPECT_EQ(circle_text({"b", "c", "d"}), "b -> c -> d -> b");
  EXPECT_TRUE(find_circles({{"a", {"b", "c"}}, {"b", {"c"}}, {"c", {}}}).empty());
}
TEST(Circles, UsersComeFirst) {
  EXPECT_EQ(users_first({{"a", {}}, {"b", {"d"}}, {"c", {"a", "b"}}, {"d", {}}}),
            (std::vector<std::string>{"c", "b", "a", "d"}));
}

TEST(RoomOf, DetailBelongsToItsFolder) {
  EXPECT_EQ(room_of("rpc/agent.h"), "rpc");
  EXPECT_EQ(room_of("rpc/detail/pipe.h"), "rpc");
  EXPECT_EQ(room_of("rpc/transport/detail/tls.cc"), "rpc/transport");
}

// A module of three rooms: rpc uses rpc/loop and rpc/wire, rpc/wire uses rpc/loop.
class RoomRules : public SmallTree {
 protected:
  void SetUp() override {
    SmallTree::SetUp();
    add("rpc/CMakeLists.txt",
        "retort_module(rpc SOURCES agent.cc detail/pipe.cc loop/loop.cc wire/frame.cc HEADERS "
        "agent.h)\n");
    add("rpc/loop/loop.h", "#pragma once\n");
    add("rpc/loop/loop.cc", "#include \"rpc/loop/loop.h\"\n");
    add("rpc/wire/detail/bytes.h", "#pragma once\n#include \"rpc/loop/loop.h\"\n");
    add("rpc/wire/frame.cc", "#include \"rpc/wire/detail/bytes.h\"\n");
    add("rpc/detail/pipe.cc",
        "#include \"rpc/detail/pipe.h\"\n#include \"rpc/loop/loop.h\"\n"
        "#include \"rpc/wire/detail/bytes.h\"\n");
    add_table("rpc -> rpc/loop, rpc/wire\nrpc/wire -> rpc/loop\nrpc/loop -> none\n");
  }

  void add_table(const std::string& lines) {
    add("docs/architecture.md",
        "```\nlaunch -> rpc, base\nrpc -> base\nbase -> std\n```\n\n```rooms\n" + lines + "```\n");
  }
};

TEST_F(RoomRules, TableOfTheIncludesIsClean) {
  EXPECT_TRUE(violations().empty()) << violations()[0];
}
TEST_F(RoomRules, BlockIsWhatTheIncludesAre) {
  const std::string block = room_block(folder_);
  EXPECT_EQ(block, "rpc -> rpc/loop, rpc/wire\nrpc/wire -> rpc/loop\nrpc/loop -> none\n");
  const std::string before = read_file(folder_ / "docs/architecture.md");
  add_table("rpc -> none\n");
  EXPECT_EQ(with_room_block(read_file(folder_ / "docs/architecture.md"), block), before);
  EXPECT_THROW(with_room_block("```\n```\n", block), Error);
}
TEST_F(RoomRules, LongLinesGoOn) {
  std::string includes = "#include \"rpc/agent.h\"\n", used;
  for (int i = 10; i < 30; ++i) {
    const std::string room = "rpc/room" + std::to_string(i);
    add(room + "/a.h", "#pragma once\n");
    includes += "#include \"" + room + "/a.h\"\n";
  }
  add("rpc/agent.cc", includes);
  const std::string block = room_block(folder_);
  EXPECT_NE(block.find(",\n    rpc/room"), std::string::npos) << block;
  add_table(block);
  EXPECT_TRUE(violations().empty()) << violations()[0];
}
TEST_F(RoomRules, EdgeThatIsNotListed) {
  add_table("rpc -> rpc/loop\nrpc/wire -> rpc/loop\nrpc/loop -> none\n");
  expect_one("rpc/detail/pipe.cc:3:", "rpc may not include rpc/wire");
}
TEST_F(RoomRules, EdgeThatIsNotUsed) {
  add("rpc/wire/detail/bytes.h", "#pragma once\n");
  expect_one("docs/architecture.md:9:", "rpc/wire -> rpc/loop is listed, and nothing includes it");
}
TEST_F(RoomRules, RoomWithoutALine) {
  add_table("rpc -> rpc/loop, rpc/wire\nrpc/wire -> rpc/loop\n");
  expect_one("docs/architecture.md:", "the room rpc/loop has no line");
}
TEST_F(RoomRules, LineWithoutARoom) {
  add_table("rpc -> rpc/loop, rpc/wire\nrpc/wire -> rpc/loop\nrpc/loop -> none\nbase -> none\n");
  expect_one("docs/architecture.md:11:", "base is no room");
}
TEST_F(RoomRules, LineThatIsNone) {
  add_table("rpc: rpc/loop\n");
  EXPECT_THROW(violations(), Error);
}
TEST_F(RoomRules, RoomsThatIncludeEachOther) {
  add("rpc/loop/loop.cc", "#include \"rpc/loop/loop.h\"\n#include \"rpc/detail/pipe.h\"\n");
  const std::string circle =
      "rpc -> rpc/loop -> rpc (rpc/detail/pipe.cc:2 includes \"rpc/loop/loop.h\")";
  const auto found = violations();
  ASSERT_EQ(found.size(), 2u) << "also the edge is not listed";
  EXPECT_NE(found[0].find(circle), std::string::npos) << found[0];
  EXPECT_NE(found[1].find("rpc/loop may not include rpc"), std::string::npos) << found[1];
  const std::string refusal = test::error_of([&] { room_block(folder_); }).what();
  EXPECT_NE(refusal.find(circle), std::string::npos) << refusal;

  // To list the edge does not help.
  add_table("rpc -> rpc/loop, rpc/wire\nrpc/wire -> rpc/loop\nrpc/loop -> rpc\n");
  EXPECT_EQ(violations().size(), 2u) << "the includes have a circle, and so has the table";
  rules_.rooms = false;
  EXPECT_TRUE(violations().empty());
}
TEST_F(RoomRules, LongerCircle) {
  add("rpc/detail/pipe.cc",
      "#include \"rpc/detail/pipe.h\"\n#include \"rpc/wire/detail/bytes.h\"\n");
  add("rpc/loop/loop.cc", "#include \"rpc/loop/loop.h\"\n#include \"rpc/detail/pipe.h\"\n");
  add_table("rpc -> rpc/wire\nrpc/wire -> rpc/loop\nrpc/loop -> rpc\n");
  const auto found = violations();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found[0].find("rpc -> rpc/wire -> rpc/loop -> rpc"), std::string::npos) << found[0];
  EXPECT_NE(found[1].find("a circle of rooms: rpc -> rpc/wire -> rpc/loop -> rpc"),
            std::string::npos);
}

// A table of packages, of which rpc has two.
class PackageRules : public SmallTree {
 protected:
  void SetUp() override {
    SmallTree::SetUp();
    add("docs/architecture.md",
        "```\nlaunch -> rpc, base\nrpc -> base\nbase -> std\n```\n\n```packages\n"
        "tensorpipe, torch -> rpc\ntensorpipe/cuda -> rpc/cuda\n```\n");
    add("rpc/CMakeLists.txt",
        "retort_module(rpc SOURCES agent.cc detail/pipe.cc cuda/copy.cc HEADERS agent.h)\n");
    add("rpc/cuda/copy.cc", "#include <tensorpipe/cuda/event.h>\n");
    rules_.rooms = false;
  }
};

TEST_F(PackageRules, AreClean) { EXPECT_TRUE(violations().empty()) << violations()[0]; }
TEST_F(PackageRules, PackageElsewhere) {
  add("base/error.cc", "#include \"base/error.h\"\n#include <tensorpipe/tensorpipe.h>\n");
  expect_one("base/error.cc:2:", "<tensorpipe/tensorpipe.h> does not belong here");
  add("base/error.cc", "#include \"base/error.h\"\n#include <tensorpipes/tensorpipe.h>\n");
  EXPECT_TRUE(violations().empty()) << "another package";
}
TEST_F(PackageRules, LongestNameDecides) {
  add("rpc/agent.cc", "#include \"rpc/agent.h\"\n#include <tensorpipe/cuda/event.h>\n");
  expect_one("rpc/agent.cc:2:", "does not belong here");
}
TEST_F(PackageRules, FolderThatHasNone) {
  add("rpc/cuda/copy.cc", "\n");
  expect_one("docs/architecture.md:9:", "nothing in rpc/cuda includes tensorpipe/cuda");
}

// A tour that names files and functions.
class TourRules : public SmallTree {
 protected:
  void SetUp() override {
    SmallTree::SetUp();
    add("rpc/agent.cc",
        "#include \"rpc/agent.h\"\n#include \"rpc/detail/pipe.h\"\nint Agent::call() {}\n");
  }
};

TEST_F(TourRules, FilesAndFoldersAreThere) {
  const std::string good = "`rpc/agent.h`, `pipe.cc` in `rpc/detail`; `rpc.timeout`, `a/b.yaml`\n";
  add("docs/tour.md", good);
  EXPECT_TRUE(violations().empty()) << violations()[0];
  for (const std::string bad : {"rpc/pipe.h", "pope.h", "rpc/details"}) {
    add("docs/tour.md", good + "`" + bad + "`\n");
    expect_one("docs/tour.md:2:", bad);
  }
}
TEST_F(TourRules, FunctionsAreThere) {
  const std::string good = "`Agent::call`, `call()`, `retort check`\n";
  add("docs/tour.md", good);
  EXPECT_TRUE(violations().empty()) << violations()[0];
  for (const std::string bad : {"Agent::send", "Pipe::call", "send()"}) {
    add("docs/tour.md", good + "`" + bad + "`\n");
    expect_one("docs/tour.md:2:", "names " + bad);
  }
}

// A header of rpc that only rpc/agent.cc includes.
class RentRules : public SmallTree {
 protected:
  void SetUp() override {
    SmallTree::SetUp();
    rules_.rent = true;
    add("rpc/CMakeLists.txt",
        "retort_module(rpc SOURCES agent.cc detail/pipe.cc pace.cc HEADERS agent.h)\n");
    add("rpc/agent.cc", "#include \"rpc/agent.h\"\n#include \"rpc/pace.h\"\n");
    add("rpc/pace.cc", "#include \"rpc/pace.h\"\n");
    add("rpc/pace.h", "#pragma once\n");
  }
};

TEST_F(RentRules, OneUserAndNoTest) {
  expect_one("rpc/pace.h:1:", "a header of 1 lines that only rpc/agent.cc includes");
  rules_.rent = false;
  EXPECT_TRUE(violations().empty());
}
TEST_F(RentRules, Payments) {
  add("rpc/pace.h", "#pragma once\n" + std::string(24, '\n'));
  EXPECT_TRUE(violations().empty()) << "25 lines";
  add("rpc/pace.h", "#pragma once\n" + std::string(23, '\n'));
  expect_one("rpc/pace.h:1:", "24 lines");
  add("rpc/detail/pipe.cc", "#include \"rpc/detail/pipe.h\"\n#include \"rpc/pace.h\"\n");
  EXPECT_TRUE(violations().empty()) << "a second user";
  add("rpc/detail/pipe.cc", "#include \"rpc/detail/pipe.h\"\n");
  add("tests/rpc/agent_test.cc", "#include \"rpc/detail/pipe.h\"\n#include \"rpc/pace.h\"\n");
  EXPECT_TRUE(violations().empty()) << "a test";
}
TEST_F(RentRules, DoorOfARoom) {
  rules_.rooms = false;
  fs::create_directories(folder_ / "rpc/loop");
  fs::rename(folder_ / "rpc/pace.h", folder_ / "rpc/loop/pace.h");
  add("rpc/pace.cc", "\n");
  add("rpc/agent.cc", "#include \"rpc/agent.h\"\n#include \"rpc/loop/pace.h\"\n");
  EXPECT_TRUE(violations().empty()) << "another room asks for it";
}
TEST_F(RentRules, NobodyIncludesIt) {
  add("rpc/agent.cc", "#include \"rpc/agent.h\"\n");
  expect_one("rpc/pace.h:1:", "only its own .cc includes");
}
TEST_F(RentRules, Exceptions) {
  rules_.rent_exceptions = {{"rpc/pace.h", "the protocol names it"}};
  EXPECT_TRUE(violations().empty());
  add("tests/rpc/agent_test.cc", "#include \"rpc/detail/pipe.h\"\n#include \"rpc/pace.h\"\n");
  expect_one("rpc/pace.h:1:", "does not need");
  rules_.rent_exceptions = {{"rpc/gone.h", "the protocol names it"}};
  expect_one("rpc/gone.h:1:", "does not exist");
}

using PublicHeaders = SmallTree;

TEST_F(PublicHeaders, NoOtherModuleIncludesIt) {
  rules_.public_headers = true;
  EXPECT_TRUE(violations().empty()) << violations()[0];
  add("launch/main.cc", "#include \"base/error.h\"\n");
  add("tests/rpc/agent_test.cc", "#include \"rpc/agent.h\"\n");
  expect_one("rpc/agent.h:1:", "does not belong into HEADERS");
  rules_.public_headers = false;
  EXPECT_TRUE(violations().empty());
}
TEST_F(PublicHeaders, WhatAPublicHeaderIncludesIsPublic) {
  rules_.public_headers = true;
  add("rpc/CMakeLists.txt",
      "retort_module(rpc SOURCES agent.cc detail/pipe.cc HEADERS agent.h options.h)\n");
  add("rpc/options.h", "#pragma once\n");
  expect_one("rpc/options.h:1:", "does not belong into HEADERS");
  add("rpc/agent.h", "#pragma once\n#include \"rpc/options.h\"\n#include \"base/error.h\"\n");
  EXPECT_TRUE(violations().empty());
}

}  // namespace
}  // namespace retort::house
