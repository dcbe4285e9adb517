// The checksums of a checkpoint: what of it is compared when, and what is said of damage.
#include "models/safetensors/file_checksums.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/file.h"
#include "models/safetensors/safetensors.h"
#include "models/safetensors/writer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChecksumMiB = FileChecksum::kBlockBytes;

// A checkpoint of one file of tensors, of some MiB, and one small file.
class FileChecksumsTest : public test::FolderTest {
 protected:
  void SetUp() override {
    test::FolderTest::SetUp();
    fs::create_directories(checkpoint_ / "state");
    write_safetensors(weights_, {{"a", at::arange(1000.0)}, {"b", table_}});
    write_file_atomically(checkpoint_ / "state/loop.json", "{\"step\": 3}");
    mark();
  }
  void mark() const {
    FileChecksums files;
    for (const char* name : {"model.safetensors", "state/loop.json"})
      files.emplace(name, checksum_of_file(checkpoint_ / name));
    write_file_atomically(checkpoint_ / kCompleteFile, write_checksums(files));
  }
  // Another value for the byte at `offset`, in place; once more: as it was.
  static void flip(const fs::path& file, uint64_t offset) {
    SharedFile shared(file);
    const std::byte other = MappedFile(file).bytes()[offset] ^ std::byte{0x10};
    shared.write(offset, {&other, 1});
  }

  const fs::path checkpoint_ = folder_ / "checkpoint-3";
  const fs::path weights_ = checkpoint_ / "model.safetensors";
  const at::Tensor table_ = at::arange(1024.0 * 1024).reshape({1024, 1024});  // 4 MiB
};

// Every byte of what says so.
TEST_F(FileChecksumsTest, AreReadAsTheyWereWrittenOrNotAtAll) {
  const fs::path complete = checkpoint_ / kCompleteFile;
  const auto files = read_checksums(checkpoint_);
  ASSERT_TRUE(files);
  EXPECT_EQ(files->at("model.safetensors"), checksum_of_file(weights_));
  EXPECT_EQ(files->at("model.safetensors").blocks.size(), 5U);

  const uint64_t size = fs::file_size(complete);
  for (uint64_t offset = 0; offset < size; ++offset) {
    flip(complete, offset);
    const Error error = test::error_of([&] { read_checksums(checkpoint_); });
    EXPECT_NE(error.message().find(complete.string()), std::string::npos) << error.message();
    flip(complete, offset);
  }
  EXPECT_TRUE(read_checksums(checkpoint_));

  // Those of before there were any, and of later.
  for (const char* text : {"complete\n", "complete", "complete\r\n", "", "\n"}) {
    write_file_atomically(complete, text);
    EXPECT_FALSE(read_checksums(checkpoint_)) << text;
  }
  EXPECT_FALSE(check_small_files(checkpoint_).has_checksums);
  write_file_atomically(complete, "{\"format\": 2}\n");
  EXPECT_EQ(test::code_of([&] { read_checksums(checkpoint_); }), ErrorCode::kMismatch);
  fs::remove(complete);
  EXPECT_FALSE(read_checksums(checkpoint_));
}

// Parts that several writers have, and a part that one of them has lost.
TEST_F(FileChecksumsTest, AreTheSumsOfTheirWriters) {
  const SafetensorsFiles files = SafetensorsFiles::one(
      "shared.safetensors", SafetensorsLayout({{"b", at::kFloat, {1024, 1024}}}));
  create_safetensors(checkpoint_, files);
  std::vector<FileChecksum> sums;
  for (int64_t half = 0; half < 2; ++half) {
    SafetensorsSliceWriter writer(checkpoint_, files);
    // Columns, so that every block is of both.
    const at::Tensor slice = table_.narrow(1, 512 * half, 512).contiguous();
    writer.write({.name = "b",
                  .shape = {1024, 1024},
                  .slice_shape = {1024, 512},
                  .dim = 1,
                  .offset = 512 * half,
                  .values = slice.reshape({-1})});
    writer.finish();
    sums.push_back(writer.checksums().at(0));
  }

  FileChecksum whole = sums[0];
  for (size_t i = 0; i < whole.blocks.size(); ++i)
    whole.blocks[i] += sums[1].blocks[i];
  whole.add(std::as_bytes(std::span(files.files[0].second.head())), 0);
  EXPECT_EQ(whole, checksum_of_file(checkpoint_ / "shared.safetensors"));
  EXPECT_NE(sums[0].blocks, whole.blocks);
}

TEST_F(FileChecksumsTest, TellWhatIsDamagedWhereItIsRead) {
  const uint64_t in_b = fs::file_size(weights_) - kChecksumMiB / 2;
  flip(weights_, in_b);
  EXPECT_TRUE(check_small_files(checkpoint_).has_checksums)
      << "tensors are compared when they are read";
  const SafetensorsReader reader(checkpoint_);
  EXPECT_EQ(reader.dtype("b"), at::kFloat) << "nothing is read for that";
  EXPECT_TRUE(at::equal(reader.rows("b", 0, 512), table_.narrow(0, 0, 512)));
  EXPECT_TRUE(at::equal(reader.get("a"), at::arange(1000.0)));

  for (const Error& error :
       {test::error_of([&] { reader.get("b"); }),
        test::error_of([&] { reader.rows("b", 0, 1024); }), test::error_of([&] {
          parallel::TensorPiece piece = whole_piece("b", table_.clone());
          reader.read_piece(piece);
        }),
        test::error_of([&] { reader.copy_rows("b", 0, at::empty_like(table_)); }),
        test::error_of([&] { reader.copy_rows("b", 0, table_.to(at::kDouble)); })}) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(is_damage(error));
    EXPECT_NE(error.message().find(weights_.string() + " is not what was saved"), std::string::npos)
        << error.message();
  }
  flip(weights_, in_b);
  EXPECT_TRUE(at::equal(SafetensorsReader(checkpoint_).get("b"), table_));
}

// Each MiB is compared as it is copied, whole or in part, as it is or converted.
TEST_F(FileChecksumsTest, AreComparedWhereverACopyBeginsAndEnds) {
  const auto columns = [&] {
    return parallel::TensorPiece{.name = "b",
                                 .shape = {1024, 1024},
                                 .slice_shape = {1024, 512},
                                 .dim = 1,
                                 .offset = 256,
                                 .begin = 100,
                                 .values = at::zeros({1023 * 512})};
  };
  for (const auto& [first, count] : {std::pair(0, 1024), {1, 1000}, {255, 300}, {1023, 1}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor to = at::empty({count, 1024}, dtype);
      SafetensorsReader(checkpoint_).copy_rows("b", first, to);
      EXPECT_TRUE(at::equal(to, table_.narrow(0, first, count).to(dtype))) << first << dtype;
    }
  }
  parallel::TensorPiece piece = columns();
  SafetensorsReader(checkpoint_).read_piece(piece);
  EXPECT_TRUE(
      at::equal(piece.values, table_.narrow(1, 256, 512).reshape({-1}).narrow(0, 100, 1023 * 512)));

  // One byte of each block, the first one's and the last one's among them.
  for (uint64_t offset = fs::file_size(weights_) - 1; offset > kChecksumMiB / 2;
       offset -= std::min(offset, kChecksumMiB)) {
    flip(weights_, offset);
    const std::string block = std::to_string(offset / kChecksumMiB * kChecksumMiB) + " to ";
    const SafetensorsReader reader(checkpoint_);
    for (const Error& error :
         {test::error_of([&] { reader.copy_rows("b", 0, at::empty_like(table_)); }),
          test::error_of([&] { reader.copy_rows("b", 0, table_.to(at::kDouble)); }),
          test::error_of([&] { reader.read_piece(piece); })}) {
      EXPECT_TRUE(is_damage(error));
      EXPECT_NE(error.message().find(block), std::string::npos) << error.message();
    }
    flip(weights_, offset);
  }
}

TEST_F(FileChecksumsTest, TellOfHeadersCutFilesAndMissingOnes) {
  const auto damaged = [&](const fs::path& file, const auto& work) {
    const Error error = test::error_of(work);
    EXPECT_TRUE(is_damage(error)) << error.message();
    EXPECT_NE(error.message().find(file.string()), std::string::npos) << error.message();
  };
  for (const uint64_t offset : {0, 7, 8, 60}) {
    flip(weights_, offset);
    damaged(weights_, [&] { SafetensorsReader reader(checkpoint_); });
    flip(weights_, offset);
  }
  const fs::path loop = checkpoint_ / "state/loop.json";
  flip(loop, 3);
  damaged(loop, [&] { check_small_files(checkpoint_); });
  flip(loop, 3);
  EXPECT_TRUE(check_small_files(checkpoint_).has_checksums);
  fs::remove(loop);
  damaged(loop, [&] { check_small_files(checkpoint_); });
  fs::resize_file(weights_, fs::file_size(weights_) - 1);
  damaged(weights_, [&] { check_small_files(checkpoint_); });
  damaged(weights_, [&] { SafetensorsReader reader(checkpoint_); });

  // Whoever says that it is complete, and no more, has it taken as it is.
  write_file_atomically(checkpoint_ / kCompleteFile, "complete\n");
  EXPECT_FALSE(check_small_files(checkpoint_).has_checksums);
}

// A link to itself is there, and cannot be read, whoever asks.
TEST_F(FileChecksumsTest, TellWhatCannotBeReadFromWhatIsDamaged) {
  const std::vector<fs::path> files{weights_, checkpoint_ / "state/loop.json",
                                    checkpoint_ / kCompleteFile};
  for (const fs::path& file : files) {
    const fs::path kept = file.string() + ".kept";
    fs::rename(file, kept);
    fs::create_symlink(file.filename(), file);
    for (const Error& error :
         {test::error_of([&] { check_small_files(checkpoint_); }), test::error_of([&] {
            is_still_damaged(checkpoint_, damage(file, "it is missing").message());
          })}) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.message();
      EXPECT_FALSE(is_damage(error));
      EXPECT_NE(error.message().find(file.string()), std::string::npos) << error.message();
    }
    fs::rename(kept, file);
  }
}

TEST_F(FileChecksumsTest, LetPeopleChangeWhatNoRunGoesOnWith) {
  const std::vector<std::string> names{"config.json", "chat_template.jinja"};
  FileChecksums files = *read_checksums(checkpoint_);
  for (const std::string& name : names) {
    write_file_atomically(checkpoint_ / name, "{}");
    files.emplace(name, checksum_of_file(checkpoint_ / name));
  }
  write_file_atomically(checkpoint_ / kCompleteFile, write_checksums(files));
  EXPECT_TRUE(check_small_files(checkpoint_).changed.empty());

  write_file_atomically(checkpoint_ / "config.json", "{\"architectures\": []}");
  fs::remove(checkpoint_ / "chat_template.jinja");
  const SmallFiles found = check_small_files(checkpoint_);
  EXPECT_TRUE(found.has_checksums);
  ASSERT_EQ(found.changed.size(), 2U);
  EXPECT_NE(found.changed[0].find("chat_template.jinja is not what was saved: it is missing"),
            std::string::npos)
      << found.changed[0];
  EXPECT_NE(found.changed[1].find("config.json is not what was saved"), std::string::npos)
      << found.changed[1];

  write_file_atomically(checkpoint_ / "config.json", "{\"architectures\":");
  EXPECT_TRUE(is_damage(test::error_of([&] { check_small_files(checkpoint_); })));
}

// What one process saw, and what is there.
TEST_F(FileChecksumsTest, AreComparedOnceMore) {
  const uint64_t last = fs::file_size(weights_) - 1;
  flip(weights_, last);
  const std::string seen =
      test::error_of([&] { SafetensorsReader(checkpoint_).get("b"); }).message();
  EXPECT_TRUE(is_still_damaged(checkpoint_, seen));
  flip(weights_, last);
  EXPECT_FALSE(is_still_damaged(checkpoint_, seen));
  flip(weights_, kChecksumMiB);
  EXPECT_FALSE(is_still_damaged(checkpoint_, seen)) << "these are others than the message names";
  EXPECT_TRUE(is_still_damaged(checkpoint_, damage(weights_, "it is missing").message()));
  flip(weights_, kChecksumMiB);

  const fs::path loop = checkpoint_ / "state/loop.json";
  const std::string missing = damage(loop, "it is missing").message();
  EXPECT_FALSE(is_still_damaged(checkpoint_, missing));
  fs::remove(loop);
  EXPECT_TRUE(is_still_damaged(checkpoint_, missing));

  const fs::path complete = checkpoint_ / kCompleteFile;
  const std::string own = damage(complete, "its own checksum is another one").message();
  EXPECT_FALSE(is_still_damaged(checkpoint_, own));
  flip(complete, 30);
  EXPECT_TRUE(is_still_damaged(checkpoint_, own));
  write_file_atomically(complete, "complete\n");
  EXPECT_TRUE(is_still_damaged(checkpoint_, seen)) << "nobody can say";
}

}  // namespace
}  // namespace retort::models
