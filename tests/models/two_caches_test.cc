// Safetensors files that two hosts write, each through a page cache of its own: no byte is lost.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <future>

#include "base/error.h"
#include "base/file.h"
#include "base/write_turn.h"
#include "models/safetensors/safetensors.h"
#include "models/safetensors/writer.h"
#include "tests/support/caching_mount.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/temporary_folder.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;
using parallel::TensorPiece;

constexpr int64_t kMatrixRows = 400, kMatrixColumns = 150;

// Three files; each host has one half of every row (tp), and one of the flat optimizer state (dp).
class TwoCaches : public test::FolderTest {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "disk");
    for (const char* name : {"a", "b", "c"})
      tensors_.emplace_back(name, at::arange(kMatrixRows * kMatrixColumns)
                                      .view({kMatrixRows, kMatrixColumns})
                                      .to(at::kFloat));
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors_)
      infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    files_ = SafetensorsFiles::model(infos, {.max_shard_bytes = kMatrixRows * kMatrixColumns * 4});
  }

  std::vector<TensorPiece> share_of(int64_t host) const {
    std::vector<TensorPiece> pieces;
    for (const auto& [name, tensor] : tensors_) {
      const bool is_flat = name == "c";
      const int64_t half = is_flat ? kMatrixRows * kMatrixColumns / 2 : kMatrixColumns / 2;
      const at::Tensor values = is_flat ? tensor.view({-1}).narrow(0, host * half, half)
                                        : tensor.narrow(1, host * half, half).reshape({-1});
      pieces.push_back({.name = name,
                        .shape = {kMatrixRows, kMatrixColumns},
                        .slice_shape = {kMatrixRows, is_flat ? kMatrixColumns : half},
                        .dim = is_flat ? 0 : 1,
                        .offset = is_flat ? 0 : host * half,
                        .begin = is_flat ? host * half : 0,
                        .values = values});
    }
    return pieces;
  }
  void write(const fs::path& folder, int64_t host) const {
    SafetensorsSliceWriter writer(folder, files_, {.in_turns = true});
    writer.write(share_of(host));
    writer.finish();
    EXPECT_EQ(writer.num_elements(), static_cast<uint64_t>(3 * kMatrixRows * kMatrixColumns / 2));
  }
  // The names of the files in `folder` that are not those of one writer.
  std::string wrong_files(const fs::path& folder) const {
    test::TemporaryFolder one;
    write_safetensors_folder(one.path(), tensors_,
                             {.max_shard_bytes = kMatrixRows * kMatrixColumns * 4});
    std::string wrong;
    for (const auto& [name, layout] : files_.files)
      if (read_file(one.path() / name) != read_file(folder / name)) wrong += name + " ";
    return wrong;
  }

  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  SafetensorsFiles files_;
};

// Also what the mounts of this test are worth: they lose what is not written in turns.
TEST_F(TwoCaches, LoseBytesUnlessFilesAreWrittenInTurns) {
  if (!test::CachingMount::available()) GTEST_SKIP() << "needs root and /dev/fuse";
  const fs::path disk = folder_ / "disk";
  const test::CachingMount here(disk, folder_ / "here"), there(disk, folder_ / "there");
  EXPECT_EQ(page_cache_of(here.path()), page_cache_of(here.path()));
  EXPECT_NE(page_cache_of(here.path()), page_cache_of(there.path()));

  fs::create_directories(disk / "lost");
  create_safetensors(here.path() / "lost", files_);
  {
    SafetensorsSliceWriter first(here.path() / "lost", files_);
    SafetensorsSliceWriter second(there.path() / "lost", files_);
    first.write(share_of(0));
    second.write(share_of(1));
    first.finish();
    second.finish();
  }
  EXPECT_NE(wrong_files(disk / "lost"), "") << "these mounts show nothing";

  for (int trial = 0; trial < 8; ++trial) {
    const std::string name = "kept-" + std::to_string(trial);
    fs::create_directories(disk / name);
    create_safetensors(here.path() / name, files_);
    auto other = std::async(std::launch::async, [&] { write(there.path() / name, 1); });
    write(here.path() / name, 0);
    other.get();
    EXPECT_EQ(wrong_files(disk / name), "") << name;
    EXPECT_EQ(wrong_files(here.path() / name), "") << name << ", as the first host sees it";
    for (const auto& entry : fs::directory_iterator(disk / name))
      EXPECT_NE(entry.path().extension(), ".turn");
  }
}

// Without mounts, too: two writers are never in one file at once, by the piece as by the folder.
TEST_F(TwoCaches, NeverWriteOneFileAtOnce) {
  const fs::path folder = folder_ / "disk";
  create_safetensors(folder, files_);
  SafetensorsSliceWriter first(folder, files_, {.in_turns = true});
  const std::vector<TensorPiece> pieces = share_of(0);
  first.write(pieces[0]);
  const auto turn_at = [&](size_t file) {
    return WriteTurn::try_take(folder / files_.files[file].first);
  };
  EXPECT_FALSE(turn_at(0)) << "until the writer goes on to another file";
  EXPECT_TRUE(turn_at(1));
  first.write(pieces[1]);
  EXPECT_TRUE(turn_at(0));
  EXPECT_FALSE(turn_at(1));

  // The second one writes meanwhile what is free, and waits for the rest.
  auto second = std::async(std::launch::async, [&] { write(folder, 1); });
  first.write(pieces[2]);
  first.finish();
  second.get();
  EXPECT_EQ(wrong_files(folder), "");
}

TEST_F(TwoCaches, DoNotWaitForAWriterThatIsGone) {
  const fs::path folder = folder_ / "disk";
  create_safetensors(folder, files_);
  const auto gone = WriteTurn::try_take(folder / files_.files[1].first);
  SafetensorsSliceWriter writer(folder, files_, {.in_turns = true, .patience = Duration(100)});
  try {
    writer.write(share_of(0));
    FAIL() << "wrote into a file of another's turn";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_NE(error.message().find(files_.files[1].first), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace retort::models
