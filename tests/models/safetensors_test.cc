#include "models/safetensors/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "models/config/config.h"
#include "tests/models/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

std::string length_bytes(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}
std::string file_of(const std::string& header, size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\1');
}

struct Broken {
  const char* what;
  std::string content;
  const char* message;
};

class BrokenFile : public testing::TestWithParam<Broken> {};

TEST_P(BrokenFile, IsCorruptAndNamed) {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::ofstream(path, std::ios::binary) << GetParam().content;
  SCOPED_TRACE(GetParam().what);
  const std::string message =
      test::message_of([&] { SafetensorsReader reader(path); }, ErrorCode::kCorrupt);
  EXPECT_NE(message.find("x.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}

constexpr const char* kGood =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64",)"
    R"("shape":[],"data_offsets":[8,16]}})";

Broken with_entry(const char* what, const char* a, size_t bytes, const char* message) {
  return {what, file_of(std::string(R"({"a":)") + a + "}", bytes), message};
}

// Opening it would wait until somebody writes into it.
TEST(BrokenFolder, APipeIsNeitherWeightsNorConfig) {
  const test::TemporaryFolder folder;
  for (const char* name : {"model.safetensors", "config.json"})
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
  const std::string weights = test::message_of([&] { SafetensorsReader reader(folder.path()); });
  EXPECT_NE(weights.find("is not a regular file but a pipe"), std::string::npos) << weights;
  const std::string config = test::message_of([&] { read_model_config(folder.path()); });
  EXPECT_NE(config.find("is not a regular file but a pipe"), std::string::npos) << config;
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenFile,
    testing::Values(
        Broken{"empty length", "1234", "shorter"},
        Broken{"length beyond the file", length_bytes(1000) + "{}", "claims 1000"},
        Broken{"huge length", length_bytes(~uint64_t{0}) + "{}", "claims"},
        Broken{"not JSON", file_of("{\"a\":", 8), "not JSON"},
        Broken{"not an object", file_of("[]", 0), "object"},
        Broken{"truncated data", file_of(kGood, 12), "tensor 'b'"},
        Broken{"surplus data", file_of(kGood, 17), "belong to none"},
        with_entry("unknown dtype", R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})", 8,
                   "F31"),
        with_entry("no dtype", R"({"shape":[2],"data_offsets":[0,8]})", 8, "tensor 'a'"),
        with_entry("size differs", R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8,
                   "need 12"),
        with_entry("negative size", R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8,
                   "natural"),
        with_entry(
            "overflow",
            R"({"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]})", 8,
            "overflows"),
        with_entry("offsets reversed", R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8,
                   "outside"),
        with_entry("offsets outside", R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})", 8,
                   "outside"),
        with_entry("offsets not a pair", R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", 8,
                   "pair"),
        with_entry("offset a string", R"({"dtype":"F32","shape":[2],"data_offsets":["0",8]})", 8,
                   "natural"),
        with_entry("hole", R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8, "unused"),
        Broken{"overlap",
               file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                       12),
               "overlaps"},
        Broken{"twice",
               file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                       8),
               "twice"},
        Broken{"metadata", file_of(R"({"__metadata__":{"format":1}})", 0), "__metadata__"}));

// What the JSON library prints, it prints with one call a level.
TEST(Safetensors, AHeaderThatIsNestedTooDeeplyIsCorrupt) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  test::TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::ofstream(path, std::ios::binary)
      << file_of(R"({"a":{"dtype":)" + deep + R"(,"shape":[2],"data_offsets":[0,8]}})", 8);
  test::expect_error(ErrorCode::kCorrupt, "nested too deeply",
                     [&] { SafetensorsReader reader(path); });
}

std::vector<std::pair<std::string, at::Tensor>> sample_tensors() {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kLong,
                               at::kInt, at::kShort, at::kChar, at::kByte, at::kBool}) {
    tensors.emplace_back(c10::toString(dtype), at::arange(6).view({2, 3}).to(dtype));
  }
  tensors.emplace_back("empty", at::arange(0));
  tensors.emplace_back("scalar", at::arange(1).squeeze());
  tensors.emplace_back("transposed", at::arange(6).view({2, 3}).t());
  return tensors;
}

TEST(Safetensors, EveryDtypeComesBack) {
  test::TemporaryFolder folder;
  const auto tensors = sample_tensors();
  write_safetensors(folder.path() / "t.safetensors", tensors, {{"format", "pt"}, {"note", "x"}});
  const SafetensorsReader reader(folder.path() / "t.safetensors");
  EXPECT_EQ(reader.metadata().at("note"), "x");
  EXPECT_FALSE(reader.sharded());
  EXPECT_EQ(reader.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor back = reader.get(name);
    EXPECT_EQ(back.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(reader.shape(name), tensor.sizes().vec()) << name;
    EXPECT_TRUE(at::equal(back, tensor)) << name;
  }
  EXPECT_FALSE(reader.contains("other"));
  EXPECT_THROW(reader.get("other"), Error);
}

TEST(Safetensors, TensorsOutliveTheReader) {
  test::TemporaryFolder folder;
  write_safetensors(folder.path() / "t.safetensors", {{"a", at::arange(1000)}});
  const at::Tensor kept = SafetensorsReader(folder.path() / "t.safetensors").get("a");
  EXPECT_TRUE(at::equal(kept, at::arange(1000)));
}

TEST(Safetensors, ShardsRespectTheLimitAndReadAsOne) {
  test::TemporaryFolder folder;
  const auto tensors = sample_tensors();
  write_safetensors_folder(folder.path(), tensors, {.max_shard_bytes = 60});
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "model.safetensors"));
  const SafetensorsReader reader(folder.path());
  EXPECT_TRUE(reader.sharded());
  EXPECT_LE(reader.largest_shard_bytes(), 60u);
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(at::equal(reader.get(name), tensor)) << name;
}

TEST(Safetensors, ABrokenIndexIsCorrupt) {
  test::TemporaryFolder folder;
  write_safetensors_folder(folder.path(), sample_tensors(), {.max_shard_bytes = 60});
  const auto index = folder.path() / "model.safetensors.index.json";
  const std::string good = read_file(index);
  auto expect_corrupt = [&](const std::string& what) {
    EXPECT_EQ(test::code_of([&] { SafetensorsReader reader(folder.path()); }), ErrorCode::kCorrupt)
        << what;
  };

  // Its text.
  for (const char* content :
       {"", "[]", "{}", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "../x.safetensors"}})",
        R"({"weight_map": {"a": "missing.safetensors"}})",
        R"({"weight_map": {"nobody": "model-00001-of-00005.safetensors"}})"}) {
    write_file_atomically(index, content);
    expect_corrupt(content);
  }

  // A shard that it names.
  write_file_atomically(index, good);
  EXPECT_NO_THROW(SafetensorsReader(folder.path()));
  std::filesystem::remove(folder.path() / "model-00002-of-00005.safetensors");
  expect_corrupt("a shard is missing");
}

TEST(Safetensors, AnEmptyFolderIsTheUsersMistake) {
  test::TemporaryFolder folder;
  EXPECT_EQ(test::code_of([&] { SafetensorsReader reader(folder.path()); }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort::models
