// Which files the path of a source names.
#include "recipes/data/source_files.h"

#include "tests/data/word_tokenizer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {

class SourceFilesTest : public test::FolderTest {
 protected:
  SourceFilesTest() {
    for (const char* name : {"b.jsonl", "a.jsonl", "a10.jsonl", "a9.jsonl", ".hidden.jsonl",
                             "README.md", "state.json", "below/c.jsonl"})
      put(folder_ / name, "{\"text\":\"w1\"}\n");
  }
  // Names inside the folder, one after the other.
  std::string names(const std::string& path) const {
    std::string all;
    for (const std::string& file : source_files((folder_ / path).string()))
      all += file.substr(folder_.string().size() + 1) + " ";
    return all;
  }
  void expect_refused(const std::string& path, const std::string& part) const {
    const std::string full = (folder_ / path).string();
    const std::string message = test::message_of([&] { expand_sources({{.path = full}}); });
    EXPECT_NE(message.find("'" + full + "' "), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
};

TEST_F(SourceFilesTest, AreInTheOrderOfTheirNames) {
  EXPECT_EQ(names("a.jsonl"), "a.jsonl ");
  EXPECT_EQ(names("a*.jsonl"), "a.jsonl a10.jsonl a9.jsonl ");
  EXPECT_EQ(names("[ab].jsonl"), "a.jsonl b.jsonl ");
  EXPECT_EQ(names("*/?.jsonl"), "below/c.jsonl ");
  EXPECT_EQ(names("*.jsonl"), "a.jsonl a10.jsonl a9.jsonl b.jsonl ") << "hidden ones are left out";
  EXPECT_EQ(names("none*"), "");
}

TEST_F(SourceFilesTest, OfAFolderAreTheDataFilesInIt) {
  EXPECT_EQ(source_files(folder_.string()).size(), 4u) << names("");
  for (const char* name : {"d.parquet", "e.arrow", "f.jsonl.gz", "g.jsonl.zst"})
    put(folder_ / "kinds" / name, "");
  EXPECT_EQ(names("kinds"), "kinds/d.parquet kinds/e.arrow kinds/f.jsonl.gz kinds/g.jsonl.zst ");
}

TEST_F(SourceFilesTest, AFileMayHaveTheNameOfAPattern) {
  put(folder_ / "x[1].jsonl", "{}");
  put(folder_ / "x1.jsonl", "{}");
  EXPECT_EQ(names("x[1].jsonl"), "x[1].jsonl ");
}

// As folders of people are called: a run [3], a back\slash.
TEST_F(SourceFilesTest, FoldersBeforeAPatternAreTakenByTheirNames) {
  put(folder_ / "run [3]" / "in *" / "a.jsonl", "{}");
  put(folder_ / "run 3" / "in *" / "no.jsonl", "{}");
  put(folder_ / "back\\slash [1]" / "b.jsonl", "{}");
  EXPECT_EQ(names("run [3]/in */*.jsonl"), "run [3]/in */a.jsonl ");
  EXPECT_EQ(names("run [3]/*/a.json?"), "run [3]/in */a.jsonl ");
  EXPECT_EQ(names("back\\slash [1]/*"), "back\\slash [1]/b.jsonl ");
  EXPECT_EQ(names("run [34]/*/*.jsonl"), "run 3/in */no.jsonl ") << "no folder of that name";
}

TEST_F(SourceFilesTest, WhatNamesNoFileIsTold) {
  expect_refused("b.json", "did you mean '" + (folder_ / "b.jsonl").string() + "'?");
  expect_refused("run [5]/*.jsonl", "[ ] in a pattern stand for one of the characters");
  const std::string message = test::message_of([] { expand_sources({{.path = "org/some-rows"}}); });
  EXPECT_NE(message.find("nothing is downloaded here"), std::string::npos) << message;
  EXPECT_NE(message.find("hf download --repo-type dataset org/some-rows"), std::string::npos);
}

TEST_F(SourceFilesTest, WhatNamesNoFileIsRefused) {
  expect_refused("none.jsonl", "is not a file");
  expect_refused("none*.jsonl", "matches no file");
  expect_refused("**/c.jsonl", "holds **");
  expect_refused("bel*", "below', which is not a file");
  std::filesystem::create_directories(folder_ / "empty");
  expect_refused("empty", "holds no file that ends in .jsonl");
}

TEST_F(SourceFilesTest, SourcesKeepTheirOtherKeys) {
  const std::vector<Source> all = expand_sources(
      {{.path = (folder_ / "a*.jsonl").string(), .format = Format::kText, .weight = 2},
       {.path = (folder_ / "b.jsonl").string()}});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[2].format, Format::kText);
  EXPECT_EQ(all[2].weight, 2);
  EXPECT_EQ(all[3].weight, 1);
}

// As one file with the rows of all of them.
TEST_F(SourceFilesTest, ADatasetHasTheRowsOfAll) {
  std::filesystem::create_directories(folder_ / "tokenizer");
  const auto open = [&](const std::string& path) {
    return Dataset({{.path = path}}, {}, test::word_tokenizer(folder_ / "tokenizer"),
                   test::chat_template(), folder_ / "cache");
  };
  const Dataset set = open((folder_ / "a*.jsonl").string());
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.num_sources(), 3);
  EXPECT_EQ(set.get(1)->origin, (folder_ / "a10.jsonl").string() + ":1");
  put(folder_ / "a2.jsonl", "{\"text\":\"w2\"}\n");
  EXPECT_NE(open((folder_ / "a*.jsonl").string()).fingerprint(), set.fingerprint())
      << "a run does not go on with another set of files";
}

}  // namespace
}  // namespace retort::data
