// The index of a file with many lines: on disk, correct, and not in the process's memory. A binary
// of its own, so that nothing that other tests have freed hides what is allocated here.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "recipes/data/jsonl.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/memory_limit.h"
#include "tests/support/sanitizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
namespace fs = std::filesystem;

class LineIndexTest : public test::FolderTest {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    put(folder_ / name, text);
    return folder_ / name;
  }
  std::vector<fs::path> indices() const {
    std::vector<fs::path> found;
    if (fs::exists(cache_))
      for (const auto& entry : fs::directory_iterator(cache_))
        if (entry.path().extension() == ".lines") found.push_back(entry.path());
    return found;
  }
  fs::path cache_ = folder_ / "cache";
};

// `count` short lines; a blank line behind every `blank_every`-th.
std::string numbered_line(int64_t i) { return "{\"n\":" + std::to_string(i) + "}"; }
fs::path write_lines(const fs::path& path, int64_t count, int64_t blank_every) {
  std::ofstream out(path, std::ios::binary);
  for (int64_t i = 0; i < count; ++i) {
    out << numbered_line(i) << '\n';
    if (i % blank_every == blank_every - 1) out << " \n";
  }
  return path;
}

TEST_F(LineIndexTest, FiveMillionLinesTakeNoMemory) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer maps more memory than the limit leaves";
  constexpr int64_t kLines = 5'000'000, kBlankEvery = 10'000;
  constexpr uint64_t kLimit = uint64_t{8} << 20;  // an index in memory takes 40 MB
  const fs::path path = write_lines(folder_ / "big.jsonl", kLines, kBlankEvery);
  std::optional<JsonlFile> file;
  const auto start = std::chrono::steady_clock::now();
  {
    const test::MemoryLimit limit(kLimit);
    EXPECT_THROW(std::vector<char>(2 * kLimit), std::bad_alloc)
        << "the limit does not hold on this machine";
    ASSERT_NO_THROW(file.emplace(path, cache_));
  }
  const auto made = std::chrono::steady_clock::now();
  ASSERT_EQ(file->size(), kLines);
  ASSERT_EQ(indices().size(), 1u);
  EXPECT_LT(fs::file_size(indices()[0]), static_cast<uint64_t>(kLines * 83 / 10));
  for (uint64_t draw = 0; draw < 20'000; ++draw) {
    const auto i = static_cast<int64_t>(random_bits(1, draw) % kLines);
    ASSERT_EQ(file->line(i), numbered_line(i));
    ASSERT_EQ(file->line_number(i), i + 1 + i / kBlankEvery);
  }
  EXPECT_EQ(file->line(kLines - 1), numbered_line(kLines - 1));

  const auto time = fs::last_write_time(indices()[0]);
  const auto again_start = std::chrono::steady_clock::now();
  const JsonlFile again(path, cache_);
  const auto opened = std::chrono::steady_clock::now();
  EXPECT_EQ(again.size(), kLines);
  EXPECT_EQ(again.line(kLines / 2), file->line(kLines / 2));
  EXPECT_EQ(fs::last_write_time(indices()[0]), time) << "indexed twice";
  const auto ms = [](auto duration) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  };
  std::printf("indexed %lld lines in %lld ms, opened again in %lld ms\n",
              static_cast<long long>(kLines), static_cast<long long>(ms(made - start)),
              static_cast<long long>(ms(opened - again_start)));
}

TEST_F(LineIndexTest, EqualsTheIndexInMemory) {
  std::string text = "\xef\xbb\xbf";
  for (uint64_t i = 0; i < 200'000; ++i) {
    if (random_uniform(3, i) < 0.2) text += random_uniform(4, i) < 0.5 ? "\n" : " \t\r\n";
    text += std::string(1 + random_bits(5, i) % 9, 'x') + (i % 3 ? "\n" : "\r\n");
  }
  text += "last\n\n\n";

  const fs::path path = write("random.jsonl", text);
  const JsonlFile in_memory(path);
  const JsonlFile on_disk(path, cache_);
  ASSERT_EQ(indices().size(), 1u);
  ASSERT_EQ(in_memory.size(), 200'001);
  ASSERT_EQ(on_disk.size(), in_memory.size());

  // Against the next line that counts, found the slow way.
  int64_t number = 0;
  size_t at = 3;
  for (int64_t i = 0; i < in_memory.size(); ++i) {
    for (;;) {
      const size_t end = text.find('\n', at);
      ++number;
      const std::string_view line = std::string_view(text).substr(at, end - at);
      at = end + 1;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        ASSERT_EQ(in_memory.line(i), line.substr(0, line.find('\r'))) << i;
        break;
      }
    }
    ASSERT_EQ(on_disk.line(i), in_memory.line(i)) << i;
    ASSERT_EQ(in_memory.line_number(i), number) << i;
    ASSERT_EQ(on_disk.line_number(i), number) << i;
  }
}

TEST_F(LineIndexTest, FewLinesLeaveNoFile) {
  EXPECT_EQ(JsonlFile(write_lines(folder_ / "few.jsonl", 1000, 10), cache_).size(), 1000);
  EXPECT_TRUE(indices().empty());
}

TEST_F(LineIndexTest, AChangedFileGetsAnotherIndex) {
  const fs::path path = write_lines(folder_ / "a.jsonl", 150'000, 7);
  EXPECT_EQ(JsonlFile(path, cache_).size(), 150'000);
  ASSERT_EQ(indices().size(), 1u);
  std::ofstream(path, std::ios::app) << "{}\n";
  EXPECT_EQ(JsonlFile(path, cache_).size(), 150'001);
  EXPECT_EQ(indices().size(), 2u);
}

TEST_F(LineIndexTest, ADamagedIndexIsMadeAgain) {
  const fs::path path = write_lines(folder_ / "a.jsonl", 150'000, 7);
  EXPECT_EQ(JsonlFile(path, cache_).size(), 150'000);
  const fs::path index = indices().at(0);
  const uint64_t size = fs::file_size(index);
  for (const uint64_t left : {size / 2, size - 8, uint64_t{0}}) {
    fs::resize_file(index, left);
    const JsonlFile file(path, cache_);
    EXPECT_EQ(file.size(), 150'000) << left;
    EXPECT_EQ(file.line(149'999), numbered_line(149'999)) << left;
    EXPECT_EQ(fs::file_size(index), size) << left;
  }
}

TEST_F(LineIndexTest, AFileThatChangesInUseIsAnError) {
  const fs::path path = write("a.jsonl", "{\"a\": 1}\n{\"b\": 2}\n");
  const JsonlFile file(path);
  write("a.jsonl", "{\"a\":  1}\n{\"b\":2}\n");  // as long, in place
  EXPECT_EQ(file.line(0), "{\"a\":  1}");
  test::expect_error(ErrorCode::kCorrupt, "a.jsonl", [&] { file.line(1); });
}

TEST_F(LineIndexTest, SeveralProcessesMayIndexAtOnce) {
  const fs::path path = write_lines(folder_ / "a.jsonl", 300'000, 7);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      bool good = false;
      try {
        const JsonlFile file(path, cache_);
        good = file.size() == 300'000 && file.line(299'999) == numbered_line(299'999);
      } catch (...) {
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(indices().size(), 1u);
}

}  // namespace
}  // namespace retort::data
