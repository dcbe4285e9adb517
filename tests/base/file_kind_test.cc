// What a file is by its first bytes, and what a path that is not there may have meant.
#include "base/file_kind.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/similar_file.h"
#include "tests/support/temporary_folder.h"

namespace retort {
namespace {

using namespace std::string_literals;

TEST(FileKind, IsKnownByTheFirstBytes) {
  // UTF-16, whose other byte of these letters is 0 and stands `first` or second.
  const auto wide = [](const std::string& text, bool first) {
    std::string bytes;
    for (const char c : text)
      bytes += first ? "\0"s + c : c + "\0"s;
    return bytes;
  };

  const std::string tar = std::string(257, 'a') + "ustar  ";
  const std::pair<std::string, FileKind> cases[] = {
      // Data as they should be.
      {"", FileKind::kUnknown},
      {"{\"text\": \"a\"}\n", FileKind::kUnknown},
      {"text,label\n", FileKind::kUnknown},

      // What a download left in the place of a file; text that begins alike is none of it.
      {"version https://git-lfs.github.com/spec/v1\noid", FileKind::kGitLfsPointer},
      {"version 2 of this text", FileKind::kUnknown},
      {"\n  <!DOCTYPE HTML PUBLIC>", FileKind::kHtml},
      {"<html lang=\"en\">", FileKind::kHtml},
      {"<?xml version=\"1.0\"?>", FileKind::kXml},

      // Text in another encoding, with a mark of its order of bytes or without one.
      {"\xff\xfe{\0\"\0"s, FileKind::kUtf16},
      {wide("{\"a\": 1}", false), FileKind::kUtf16},
      {wide("{\"a\": 1}", true), FileKind::kUtf16},

      // What Python saves; a zip archive of torch.save is told from others by its first name.
      {"\x80\x04\x95"s, FileKind::kPickle},
      {"PK\x03\x04\0\0\0\0archive/data.pkl"s, FileKind::kTorchSaved},
      {"PK\x03\x04\0\0\0\0train.jsonl"s, FileKind::kZip},

      // Archives and compressed files.
      {tar, FileKind::kTar},
      {"\x1f\x8b\x08"s, FileKind::kGzip},
      {"\x28\xb5\x2f\xfd"s, FileKind::kZstd},
      {"BZh91AY", FileKind::kBzip2},
      {"\xfd\x37zXZ\0"s, FileKind::kXz},

      // Tables; Arrow is a file or a stream.
      {"PAR1\x15", FileKind::kParquet},
      {"ARROW1\0\0"s, FileKind::kArrow},
      {"\xff\xff\xff\xff\x10\0\0\0"s, FileKind::kArrow},

      // Weights, arrays and documents in the place of data.
      {"\x10\0\0\0\0\0\0\0{\"a\""s, FileKind::kSafetensors},
      {"GGUF\x03\0\0\0"s, FileKind::kGguf},
      {"\x93NUMPY\x01", FileKind::kNumpy},
      {"%PDF-1.7", FileKind::kPdf},
  };

  // What is unknown has no words that would say what it is.
  for (const auto& [bytes, kind] : cases) {
    EXPECT_EQ(file_kind(bytes), kind) << bytes;
    EXPECT_EQ(what_it_is(kind).empty(), kind == FileKind::kUnknown);
  }

  EXPECT_EQ(description(FileKind::kUnknown), "");
  EXPECT_EQ(description(FileKind::kTar), "is a tar archive; unpack it: tar -xf");
  EXPECT_EQ(description(FileKind::kGguf), "is a GGUF model");
}

TEST(FileKind, OfAFile) {
  test::TemporaryFolder folder;
  std::ofstream(folder.path() / "page") << "<html>";
  EXPECT_EQ(file_kind_of(folder.path() / "page"), FileKind::kHtml);
  EXPECT_EQ(file_kind_of(folder.path() / "none"), FileKind::kUnknown);
}

TEST(NearFile, IsTheNearestNameInTheSameFolder) {
  test::TemporaryFolder folder;
  for (const char* name : {"chats.jsonl", "questions.jsonl"})
    std::ofstream(folder.path() / name) << "{}";
  EXPECT_EQ(similar_file(folder.path() / "chat.jsonl"), folder.path() / "chats.jsonl");
  EXPECT_EQ(similar_file(folder.path() / "chats.jsonl"), "");
  EXPECT_EQ(similar_file(folder.path() / "zzzzzzzzzzzz"), "");
  EXPECT_EQ(similar_file(folder.path() / "none" / "chat.jsonl"), "");
}

TEST(NearFile, NamesOfTheHubAreTwoNames) {
  for (const char* name : {"Qwen/Qwen3-0.6B", "a/b", "org_1/name.v2"})
    EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* path : {"name", "/a/b", "./a", "a/b/c", "../a", "~/a", "a/", "a/b c", ""})
    EXPECT_FALSE(is_hub_name(path)) << path;
}

TEST(NearFile, TheHomeFolderIsPutInForATilde) {
  ::setenv("HOME", "/home/somebody", 1);
  EXPECT_EQ(home_expanded("~/data"), "/home/somebody/data");
  EXPECT_EQ(home_expanded("~"), "/home/somebody");
  for (const char* path : {"~other/data", "a/~/b", "a", ""})
    EXPECT_EQ(home_expanded(path), path);
}

}  // namespace
}  // namespace retort
