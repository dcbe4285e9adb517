// Files of rows that are not JSONL: arrays, which are read, and what is refused by what it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "recipes/data/detail/json_rows.h"
#include "recipes/data/jsonl.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
namespace fs = std::filesystem;
using NumberedLines = std::vector<std::pair<int64_t, std::string>>;

NumberedLines rows_in(const JsonlFile& file) {
  NumberedLines lines;
  for (int64_t i = 0; i < file.size(); ++i)
    lines.emplace_back(file.line_number(i), std::string(file.line(i)));
  return lines;
}

TEST(JsonRows, AnArrayIsReadObjectByObject) {
  const test::TemporaryFolder folder;
  const struct {
    const char* what;
    std::string text;
    NumberedLines lines;
  } cases[] = {
      {"on one line",
       R"([{"a": 1}, {"a": [2]},{}])",
       {{1, R"({"a": 1})"}, {2, R"({"a": [2]})"}, {3, "{}"}}},
      {"an object a line",
       "[\n{\"a\": 1},\n{\"a\": 2}\n]\n",
       {{2, R"({"a": 1})"}, {3, R"({"a": 2})"}}},
      {"indented",
       "[\n  {\n    \"a\": {\"b\": 1}\n  },\n\n  {\n    \"a\": 2\n  }\n]\n",
       {{2, R"({     "a": {"b": 1}   })"}, {6, R"({     "a": 2   })"}}},
      {"CRLF", "[\r\n{\r\n\"a\": 1}]\r\n", {{2, "{  \"a\": 1}"}}},
      {"brackets, quotes and backslashes in texts",
       R"([{"a": "]}, {\"", "b\\": "\\"}, {"c": "[{"}])",
       {{1, R"({"a": "]}, {\"", "b\\": "\\"})"}, {2, R"({"c": "[{"})"}}},
      {"BOM and blank", "\xef\xbb\xbf \n [ {\"a\": 1} ] \n", {{2, R"({"a": 1})"}}},
      {"empty", "[]", {}},
  };
  for (const auto& c : cases) {
    const fs::path file = folder.write("f.json", c.text);
    EXPECT_EQ(rows_in(JsonlFile(file)), c.lines) << c.what;
    EXPECT_EQ(rows_in(JsonlFile(file, folder / "cache")), c.lines) << c.what << ", with a cache";
  }
}

TEST(JsonRows, AnArrayThatIsNoneNamesTheLine) {
  const test::TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    const fs::path file = folder.write("f.json", text);
    return test::message_of([&] { JsonlFile read(file); });
  };
  const std::pair<std::string, std::string> cases[] = {
      {"[\n{\"a\": 1},\n{\"a\"", "f.json:3: the JSON array ends too early, behind 1 items"},
      {"[\n{\"a\": 1}\n", "f.json:3: the JSON array ends too early"},
      {"[{\"a\": \"x", "ends too early"},
      {"[1, 2]", "f.json:1: item 1 of the JSON array is no object"},
      {"[\n{\"a\": 1},\n]", "f.json:3: item 2 of the JSON array is no object"},
      {"[{} {}]", "expected a comma or ] behind item 1"},
      {"[{}]\n[{}]", "f.json:2: more text stands behind the end of the array"},
      {"[{\"a\": \"x\ny\"}]", "goes on in the next line"},
  };
  for (const auto& [text, part] : cases)
    EXPECT_NE(refusal(text).find(part), std::string::npos) << refusal(text) << " lacks " << part;
}

// 64 MiB of array through 1 MiB of text.
TEST(JsonRows, MemoryDoesNotGrowWithTheArray) {
  const test::TemporaryFolder folder;
  std::string text = "[\n";
  const std::string item = "{\"text\": \"" + std::string(1 << 10, 'a') + "\"}";
  while (text.size() < size_t{64} << 20)
    text += item + ",\n";
  text += item + "\n]\n";
  const fs::path file = folder.write("f.json", text);
  size_t largest = 0, calls = 0;
  detail::array_to_lines(file, text, [&](std::string_view part) {
    largest = std::max(largest, part.size());
    ++calls;
  });
  EXPECT_LE(largest, size_t{1} << 20);
  EXPECT_GE(calls, 60u);
}

TEST(JsonRows, OtherFilesAreNamedWithARemedy) {
  const test::TemporaryFolder folder;
  struct Case {
    std::string name, content, part, remedy;
  };
  const Case cases[] = {
      {"a.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer",
       "git lfs pull"},
      {"a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer",
       "git lfs pull"},
      {"a.jsonl", "<!doctype html>\n<html>", "an HTML page", "download the file itself"},
      {"a.jsonl", std::string("{\0\"\0a\0\"\0:\0", 10), "UTF-16", "iconv -f UTF-16 -t UTF-8"},
      {"a.jsonl", "PK\x03\x04 rows", "a ZIP archive", "unzip"},
      {"a.jsonl", std::string("\x80\x04\x95", 3), "a pickle of Python", "expected JSONL"},
      {"object.json", "{\n  \"rows\": [\n    {\"a\": 1}\n  ]\n}\n", "an object over many lines",
       "jq -c '.rows[]'"},
      {"object.json", "{\n  \"a\": 1\n}\n{\n  \"a\": 2\n}\n", "an object over many lines",
       "jq -c ."},
      {"rows.csv", "question;answer\n1;2\n", "is CSV", "pandas.read_csv('rows.csv')"},
      {"rows.jsonl", "question,answer\n\"a\",b\n", "is CSV (it begins with 'question,answer')",
       ".to_json('rows.jsonl'"},
      {"rows.txt", "q\ta\n1\t2\n", "is TSV", "sep='\\t'"},
  };
  for (const auto& [name, content, part, remedy] : cases) {
    const fs::path file = folder.write(name, content);
    const std::string message = test::message_of([&] { JsonlFile read(file); });
    EXPECT_EQ(message.find(file.string() + ": "), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
    EXPECT_NE(message.find(remedy), std::string::npos) << message << " lacks " << remedy;
  }

  // What JSONL may look like: a first line that is bad, a brace behind blank lines, one row.
  for (const char* text : {"{\"a\": 1\n{\"a\": 2}\n", "no row\n{\"a\": 2}\n", "\n\n{\"a\": 1}\n",
                           "{\n", "{\"a\":\n1}\n"})
    EXPECT_NO_THROW(JsonlFile(folder.write("a.jsonl", text))) << text;
}

}  // namespace
}  // namespace retort::data
