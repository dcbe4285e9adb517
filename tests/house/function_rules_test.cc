// Each rule about functions, and about the classes that they are members of, is seen to fail.
#include <gtest/gtest.h>

#include "tests/house/small_tree.h"

namespace retort::house {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i)
    all += text;
  return all;
}

using FunctionRules = SmallTree;

TEST_F(FunctionRules, BodyWithoutABlankLine) {
  const std::string begin = "#include \"base/error.h\"\nvoid f(int x)\n    noexcept {\n";
  add("base/error.cc", begin + repeated("  x = '{';  // }\n", 40) + "}\n");
  EXPECT_TRUE(violations().empty()) << "40 lines are allowed";
  add("base/error.cc", begin + repeated("  x = '{';  // }\n", 41) + "}\n");
  expect_one("base/error.cc:3:", "a body of 41 lines without a blank line");
  add("base/error.cc", begin + repeated("  x = 1;\n", 40) + "\n  x = 2;\n}\n");
  EXPECT_TRUE(violations().empty()) << "a blank line is enough";
}
TEST_F(FunctionRules, BodyOfAMemberFunction) {
  add("base/error.cc", "#include \"base/error.h\"\nnamespace a {\nstruct S {\n  int i = 0;\n\n" +
                           std::string("  S(int b) : b_{b}, c_(b) {\n") +
                           repeated("    if (b) {\n      f(R\"({)\");\n    }\n", 14) +
                           "  }\n};\n}  // namespace a\n");
  expect_one("base/error.cc:6:", "a body of 42 lines");
}
TEST_F(FunctionRules, BlankLineOfAnotherBody) {
  add("base/error.cc", "#include \"base/error.h\"\nint f() {\n\n  return 1;\n}\n\nint g() {\n" +
                           repeated("  f();\n", 41) + "}\n\nint h() {\n\n  return 1;\n}\n");
  expect_one("base/error.cc:7:", "a body of 41 lines");
}
TEST_F(FunctionRules, TablesHaveNoParagraphs) {
  const std::string rows = repeated("      {\"name\", [](int x) { return f(x); }},\n", 50);
  const std::string begin = "#include \"base/error.h\"\n";
  add("base/error.cc", begin + "const std::vector<Row> kRows{\n" + rows + "};\n");
  EXPECT_TRUE(violations().empty()) << "a table of the file";
  add("base/error.cc", begin + "std::vector<Row> rows() {\n  return {\n" + rows + "  };\n}\n");
  EXPECT_TRUE(violations().empty()) << "a table that a function returns";
  add("base/error.cc", begin + "int f() {\n  const std::vector<Row> kRows = {\n" + rows + "  };\n" +
                           repeated("  f();\n", 41) + "}\n");
  expect_one("base/error.cc:2:", "without a blank line");
}
TEST_F(FunctionRules, LongBody) {
  const std::string begin = "#include \"base/error.h\"\nint f() {\n\n";
  add("base/error.cc", begin + repeated("  f();\n", 59) + "}\n");
  EXPECT_TRUE(violations().empty()) << "60 lines are allowed";
  add("base/error.cc", begin + repeated("  f();\n", 60) + "}\n");
  expect_one("base/error.cc:2:", "a body of 61 lines, of at most 60");
  rules_.length_of_functions = false;
  EXPECT_TRUE(violations().empty());
}
TEST_F(FunctionRules, LongBodyOfATest) {
  add("tests/rpc/agent_test.cc",
      "#include \"rpc/agent.h\"\nTEST(A, B) {\n\n" + repeated("  f();\n", 60) + "}\n");
  expect_one("tests/rpc/agent_test.cc:2:", "a body of 61 lines");
}
TEST_F(FunctionRules, TablesHaveNoLength) {
  add("base/error.h", "#pragma once\nstruct A {\n  template <class V>\n  void fields(V& v) {\n\n" +
                          repeated("    v(1);\n", 70) + "  }\n};\n");
  EXPECT_TRUE(violations().empty()) << "the keys of a struct";
  add("base/error.cc", "#include \"base/error.h\"\nstd::vector<int> f() {\n  return {\n" +
                           repeated("      1,\n", 70) + "  };\n}\n");
  EXPECT_TRUE(violations().empty());
}

// A class with two sources, in the files of rpc.
class ClassRules : public SmallTree {
 protected:
  void add_sources(const std::string& agent, const std::string& pipe) {
    add("rpc/agent.cc", "#include \"rpc/agent.h\"\n#include \"rpc/detail/pipe.h\"\n" + agent);
    add("rpc/detail/pipe.cc", "#include \"rpc/detail/pipe.h\"\n" + pipe);
  }
};

TEST_F(ClassRules, ClassWithTwoSources) {
  add_sources("namespace a {\nvoid Agent::call(int x) {\n}\n}\n",
              "namespace a {\n\nAgent::Agent(int x) : x_(Pipe::make(x)) {\n}\n}\n");
  expect_one("rpc/detail/pipe.cc:4:", "the class Agent has its .cc: rpc/agent.cc");
  rules_.one_source_of_a_class = false;
  EXPECT_TRUE(violations().empty());
}
TEST_F(ClassRules, InnerClassAndItsTemplates) {
  add_sources("namespace a {\nstd::function<void(int)> Agent<T>::Impl::call() const {\n}\n}\n",
              "namespace a {\nbool Agent<F<int(int)>>::Impl::operator==(int) {\n}\n}\n");
  expect_one("rpc/detail/pipe.cc:3:", "the class Agent::Impl has");
}
TEST_F(ClassRules, OtherNamespaceOtherClass) {
  add_sources("namespace a::b {\nint Agent::call() {\n}\n}\n",
              "namespace a::c {\nint Agent::call() {\n}\n}\n");
  EXPECT_TRUE(violations().empty());
}
TEST_F(ClassRules, ClassesOfTheFileItself) {
  const std::string text =
      "namespace a {\nclass Agent final : public Base {\n int call();\n};\n"
      "int Agent::call() {\n}\n}\n";
  add_sources(text, text);
  EXPECT_TRUE(violations().empty());
}
TEST_F(ClassRules, FunctionsOfANamespace) {
  add_sources("int detail::call(Agent::Options options) {\n}\n",
              "int detail::send(Agent::Options options) {\n}\nAgent::Options make() {\n}\n");
  EXPECT_TRUE(violations().empty());
}

}  // namespace
}  // namespace retort::house
