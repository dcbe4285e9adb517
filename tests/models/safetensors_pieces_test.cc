// Safetensors files that several processes write, each its own slices of the tensors: the bytes of
// one writer's file, and any slice of them read back.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "models/safetensors/safetensors.h"
#include "models/safetensors/writer.h"
#include "tests/models/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::error_of;

namespace fs = std::filesystem;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using parallel::TensorPiece;

at::Tensor numbers(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const int64_t count = c10::multiply_integers(shape);
  return (at::arange(count, at::kDouble).mul(0.37).sin().mul(3)).view(shape).to(dtype);
}

NamedTensors sample() {
  return {{"vector", numbers({7001}, at::kFloat)},   {"matrix", numbers({130, 517}, at::kFloat)},
          {"cube", numbers({5, 8, 33}, at::kFloat)}, {"half", numbers({64, 9}, at::kHalf)},
          {"bits", numbers({11, 3}, at::kBFloat16)}, {"one", numbers({1, 1}, at::kFloat)},
          {"scalar", numbers({}, at::kFloat)},       {"nothing", numbers({0, 4}, at::kFloat)}};
}

std::vector<TensorInfo> infos(const NamedTensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors)
    infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  return infos;
}

NamedTensors converted(NamedTensors tensors, at::ScalarType dtype) {
  for (auto& [name, tensor] : tensors)
    tensor = tensor.to(dtype);
  return tensors;
}

// 0 and `size`, and some numbers between.
std::vector<int64_t> random_cuts(int64_t size, std::mt19937_64& random) {
  std::vector<int64_t> cuts{0, size};
  for (uint64_t n = random() % 4; n > 0 && size > 0; --n)
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(size)));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// All of the tensor, as flat ranges of slices along a random dimension; some of them are empty.
void cut(const std::string& name, const at::Tensor& whole, std::mt19937_64& random,
         std::vector<TensorPiece>& pieces) {
  const int64_t dim =
      whole.dim() == 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(whole.dim()));
  const std::vector<int64_t> slices = random_cuts(whole.dim() == 0 ? 1 : whole.size(dim), random);
  for (size_t i = 0; i + 1 < slices.size(); ++i) {
    const at::Tensor slice =
        whole.dim() == 0 ? (slices[i + 1] > slices[i] ? whole : at::empty({0}))
                         : whole.narrow(dim, slices[i], slices[i + 1] - slices[i]).contiguous();
    if (whole.dim() == 0 && slice.numel() == 0) continue;
    const at::Tensor flat = slice.reshape({-1});
    const std::vector<int64_t> ranges = random_cuts(flat.numel(), random);
    for (size_t j = 0; j + 1 < ranges.size(); ++j)
      pieces.push_back({.name = name,
                        .shape = whole.sizes().vec(),
                        .slice_shape = slice.sizes().vec(),
                        .dim = dim,
                        .offset = whole.dim() == 0 ? 0 : slices[i],
                        .begin = ranges[j],
                        .values = flat.narrow(0, ranges[j], ranges[j + 1] - ranges[j])});
  }
}

std::vector<TensorPiece> cut_all(const NamedTensors& tensors, std::mt19937_64& random) {
  std::vector<TensorPiece> pieces;
  for (const auto& [name, tensor] : tensors)
    cut(name, tensor, random, pieces);
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

// Every fourth piece from the one at `rank`.
uint64_t write_share(const fs::path& folder, const SafetensorsFiles& files,
                     const std::vector<TensorPiece>& pieces, size_t rank) {
  SafetensorsSliceWriter writer(folder, files);
  for (size_t i = rank; i < pieces.size(); i += 4)
    writer.write(pieces[i]);
  writer.finish();
  return writer.num_elements();
}

// The same by four processes at once.
void write_by_processes(const fs::path& folder, const SafetensorsFiles& files,
                        const std::vector<TensorPiece>& pieces) {
  std::vector<pid_t> children;
  for (size_t rank = 0; rank < 4; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        write_share(folder, files, pieces, rank);
        ::_exit(0);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "writer %zu: %s\n", rank, e.what());
      }
      ::_exit(1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(SafetensorsPieces, OfFourProcessesGiveTheBytesOfOneWriter) {
  const NamedTensors tensors = sample();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::mt19937_64 random(seed);
    test::TemporaryFolder one, four;
    write_safetensors(one.path() / "t.safetensors", tensors, {{"step", "3"}});
    const SafetensorsFiles files =
        SafetensorsFiles::one("t.safetensors", SafetensorsLayout(infos(tensors), {{"step", "3"}}));
    create_safetensors(four.path(), files);
    write_by_processes(four.path(), files, cut_all(tensors, random));
    EXPECT_TRUE(read_file(one.path() / "t.safetensors") == read_file(four.path() / "t.safetensors"))
        << "seed " << seed;
  }
}

TEST(SafetensorsPieces, AreConvertedToTheFilesDtypeInShardsToo) {
  const NamedTensors tensors = converted(sample(), at::kFloat);
  const NamedTensors expected = converted(tensors, at::kBFloat16);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::mt19937_64 random(seed);
    test::TemporaryFolder one, four;
    const SafetensorsWriteOptions options{.max_shard_bytes = 100'000};
    write_safetensors_folder(one.path(), expected, options);
    const SafetensorsFiles files = SafetensorsFiles::model(infos(expected), options);
    ASSERT_GT(files.files.size(), 1u);
    create_safetensors(four.path(), files);
    const std::vector<TensorPiece> pieces = cut_all(tensors, random);
    uint64_t elements = 0;
    for (size_t rank = 0; rank < 4; ++rank)
      elements += write_share(four.path(), files, pieces, rank);
    EXPECT_EQ(elements, files.num_elements());
    for (const auto& entry : fs::directory_iterator(one.path()))
      EXPECT_TRUE(read_file(entry.path()) == read_file(four.path() / entry.path().filename()))
          << entry.path();
  }
}

// Files that transformers and the safetensors package wrote.
TEST(SafetensorsPieces, OfAModelGiveTheBytesThatPythonWrote) {
  for (const char* name : kGoldens) {
    const fs::path source = golden_folder(name);
    if (!fs::exists(source / "model.safetensors")) continue;
    const SafetensorsReader reader(source);
    NamedTensors tensors;
    for (const std::string& tensor : reader.names())
      tensors.emplace_back(tensor, reader.get(tensor));
    test::TemporaryFolder folder;
    const SafetensorsFiles files = SafetensorsFiles::model(infos(tensors));
    create_safetensors(folder.path(), files);
    std::mt19937_64 random(7);
    const std::vector<TensorPiece> pieces = cut_all(tensors, random);
    for (size_t rank = 0; rank < 4; ++rank)
      write_share(folder.path(), files, pieces, rank);
    EXPECT_TRUE(read_file(folder.path() / "model.safetensors") ==
                read_file(source / "model.safetensors"))
        << name;
  }
}

TEST(SafetensorsPieces, AnySliceIsRead) {
  const NamedTensors tensors = sample();
  test::TemporaryFolder folder;
  write_safetensors(folder.path() / "t.safetensors", tensors);
  const SafetensorsReader reader(folder.path() / "t.safetensors");
  for (uint64_t seed = 20; seed < 28; ++seed) {
    std::mt19937_64 random(seed);
    for (const TensorPiece& expected : cut_all(tensors, random)) {
      for (const at::ScalarType dtype : {expected.values.scalar_type(), at::kDouble}) {
        TensorPiece piece = expected;
        piece.values = at::empty(expected.values.sizes(), dtype).fill_(9);
        reader.read_piece(piece);
        EXPECT_TRUE(at::equal(piece.values, expected.values.to(dtype)))
            << piece.name << " dim " << piece.dim << " at " << piece.begin;
      }
    }
  }
}

TEST(SafetensorsPieces, OfOtherTensorsAreRefused) {
  test::TemporaryFolder folder;
  write_safetensors(folder.path() / "t.safetensors", {{"a", numbers({4, 6}, at::kFloat)}});
  const SafetensorsReader reader(folder.path() / "t.safetensors");
  const SafetensorsFiles files =
      SafetensorsFiles::one("t.safetensors", SafetensorsLayout({{"a", at::kFloat, {4, 6}}}));
  SafetensorsSliceWriter writer(folder.path(), files);
  TensorPiece misshaped = whole_piece("a", numbers({6, 4}, at::kFloat));
  TensorPiece unknown = whole_piece("b", numbers({4, 6}, at::kFloat));

  // Of another shape, and of a tensor that is not there.
  for (const Error& e : {error_of([&] { reader.read_piece(misshaped); }),
                         error_of([&] { writer.write(misshaped); })}) {
    EXPECT_EQ(e.code(), ErrorCode::kMismatch) << e.what();
    EXPECT_NE(e.message().find("'a'"), std::string::npos) << e.what();
    EXPECT_NE(e.message().find("[4, 6]"), std::string::npos) << e.what();
  }
  for (const Error& e :
       {error_of([&] { reader.read_piece(unknown); }), error_of([&] { writer.write(unknown); })}) {
    EXPECT_EQ(e.code(), ErrorCode::kMismatch) << e.what();
    EXPECT_NE(e.message().find("'b'"), std::string::npos) << e.what();
  }

  // A piece that lies outside its tensor is the caller's bug.
  TensorPiece outside = whole_piece("a", numbers({4, 6}, at::kFloat));
  outside.offset = 1;
  EXPECT_DEATH(writer.write(outside), "a dimension 0");
  outside.offset = 0;
  outside.begin = 1;
  EXPECT_DEATH(reader.read_piece(outside), "a");
}

TEST(SafetensorsPieces, AFullDiskShowsBeforeAnythingIsWritten) {
  test::TemporaryFolder folder;
  const SafetensorsFiles files =
      SafetensorsFiles::one("t.safetensors", SafetensorsLayout({{"a", at::kFloat, {1000, 1000}}}));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1'000'000, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Error error = error_of([&] { create_safetensors(folder.path(), files); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
  EXPECT_NE(error.message().find("t.safetensors"), std::string::npos) << error.what();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace retort::models
