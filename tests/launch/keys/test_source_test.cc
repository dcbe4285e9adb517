// A row of the table of keys that names a test fails when that test does not run.
#include "tests/launch/keys/test_source.h"

#include <gtest/gtest.h>

#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

class TestSource : public FolderTest {
 protected:
  void SetUp() override {
    put(folder_ / "tests/a/CMakeLists.txt", "retort_test(a SOURCES b/a.cc)\n");
  }

  std::string why(const std::string& code, const std::string& file = "tests/a/b/a.cc") {
    put(folder_ / file, code);
    return why_not_tested(folder_, file, "key=1");
  }
};

TEST_F(TestSource, InATest) {
  EXPECT_EQ(why("TEST(A, B) {\n  run(\"key=1\");\n}\n"), "");
  EXPECT_NE(why("TEST(A, B) {\n  run(\"key=2\");\n}\n").find("any more"), std::string::npos);
  EXPECT_NE(why("TEST(A, B) {\n  // key=1\n}\n").find("any more"), std::string::npos);
  EXPECT_NE(why("TEST(A, B) {\n  f(\"key=1\");\n}\n", "tests/a/c.cc").find("in no CMake"),
            std::string::npos);
  EXPECT_EQ(why_not_tested(folder_, "tests/a/d.cc", "key=1"), "tests/a/d.cc does not exist");
}

TEST_F(TestSource, InATestThatIsSwitchedOff) {
  const std::string other = "TEST(A, C) {\n  run(\"key=2\");\n}\n";
  for (const std::string off :
       {"TEST_F(A, DISABLED_B) {\n  run(\"key=1\");\n}\n",
        "TEST(DISABLED_A, B) { run(\"key=1\"); }\n",
        "TEST(A, B) {\n  GTEST_SKIP() << \"slow\";\n  run(\"key=1\");\n}\n"})
    EXPECT_NE(why(off + other).find("switched off"), std::string::npos) << off;
}

TEST_F(TestSource, InWhatATestUses) {
  const std::string helper = "std::string change(int x) {\n  return \"key=1\";\n}\n";
  EXPECT_EQ(why(helper + "TEST(A, B) {\n  run(change(1));\n}\n"), "");
  EXPECT_NE(why(helper + "TEST(A, B) {\n  run();\n}\n").find("nobody calls"), std::string::npos);
  EXPECT_NE(why(helper + "TEST(A, DISABLED_B) {\n  run(change(1));\n}\n").find("nobody calls"),
            std::string::npos);
  EXPECT_EQ(why("const char* const kTable[] = {\"key=1\"};\nTEST(A, B) {\n  run(kTable);\n}\n"),
            "");
}

TEST_F(TestSource, InWhatHasNoTestItself) {
  EXPECT_EQ(why("inline int f() {\n  return run(\"key=1\");\n}\n", "tests/a/f.h"), "");
  EXPECT_EQ(why("run('key=1')\n", "tests/a/f.py"), "");
  EXPECT_NE(why("# key=1\n", "tests/a/f.py").find("any more"), std::string::npos);
}

}  // namespace
}  // namespace retort::test
