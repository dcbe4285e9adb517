// A small tree that keeps every rule; each test of a rule breaks it there.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/house/house_rules.h"
#include "tests/support/folder_fixture.h"

namespace retort::house {

class SmallTree : public test::FolderTest {
 protected:
  void SetUp() override {
    add("docs/architecture.md",
        "```\nlaunch -> rpc, base\nrpc -> base     calls\nbase -> std\n```\n");
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
    add("launch/CMakeLists.txt", "add_executable(retort main.cc)\n");
    add("launch/main.cc", "#include \"rpc/agent.h\"\n");
    add("tests/rpc/CMakeLists.txt", "retort_test(agent_test SOURCES agent_test.cc)\n");
    add("tests/rpc/agent_test.cc", "#include \"rpc/detail/pipe.h\"\n");
  }

  void add(const std::filesystem::path& path, const std::string& text) {
    put(folder_ / path, text);
  }

  std::vector<std::string> violations() const { return find_violations(folder_, rules_); }

  void expect_one(const std::string& start, const std::string& part) {
    const auto found = violations();
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? std::string("nothing found")
                                                  : found[found.size() - 1]);
    EXPECT_TRUE(found[0].starts_with(start)) << found[0];
    EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
  }

  // The tests of single files add headers that nobody includes.
  Rules rules_{.rent = false, .public_headers = false};
};

}  // namespace retort::house
