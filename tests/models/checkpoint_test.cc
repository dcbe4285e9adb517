// A model folder written and read back, and folders that do not fit their config.json.
#include "models/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint/rewrite_checkpoint.h"
#include "models/safetensors/safetensors.h"
#include "tests/models/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

std::vector<std::string> listing(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  names.erase(std::remove(names.begin(), names.end(), "reference.safetensors"), names.end());
  return names;
}

TEST(Checkpoint, SaveKeepsLayoutWeightsAndBytes) {
  for (const char* name : kGoldens) {
    const auto source = golden_folder(name);
    const Decoder decoder = load_decoder(source, at::kFloat);
    const at::ScalarType file_dtype = parse_dtype(decoder.config().torch_dtype);
    test::TemporaryFolder first, second;
    save_decoder(decoder, file_dtype, source, first.path());
    EXPECT_EQ(listing(first.path()), listing(source)) << name;
    EXPECT_EQ(read_file(first.path() / "config.json"), read_file(source / "config.json")) << name;
    const Decoder again = load_decoder(first.path(), at::kFloat);
    EXPECT_EQ(weights_fingerprint(again), weights_fingerprint(decoder)) << name;
    save_decoder(again, file_dtype, first.path(), second.path());
    ASSERT_EQ(listing(second.path()), listing(first.path())) << name;
    for (const std::string& file : listing(first.path())) {
      EXPECT_EQ(read_file(first.path() / file), read_file(second.path() / file))
          << name << " " << file;
    }
    const SafetensorsReader reader(first.path()), original(source);
    EXPECT_EQ(reader.names(), original.names()) << name;
    for (const std::string& tensor : reader.names())
      EXPECT_TRUE(at::equal(reader.get(tensor), original.get(tensor))) << tensor;
    EXPECT_EQ(reader.contains("lm_head.weight"), !decoder.config().tie_word_embeddings);
  }
}

TEST(Checkpoint, AnotherFileDtypeIsWrittenToTheConfig) {
  const Decoder decoder = load_decoder(golden_folder("mistral_sharded"), at::kFloat);
  test::TemporaryFolder folder;
  save_decoder(decoder, at::kBFloat16, golden_folder("mistral_sharded"), folder.path());
  EXPECT_EQ(read_model_config(folder.path()).torch_dtype, "bfloat16");
  EXPECT_EQ(SafetensorsReader(folder.path()).get("lm_head.weight").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(SafetensorsReader(folder.path()).sharded());
}

TEST(Checkpoint, LoadedWeightsAreWritableAndTheirOwn) {
  test::TemporaryFolder folder;
  for (const std::string& file : listing(golden_folder("qwen3"))) {
    std::filesystem::copy_file(golden_folder("qwen3") / file, folder.path() / file);
  }
  const std::string before = read_file(folder.path() / "model.safetensors");
  Decoder decoder = load_decoder(folder.path(), at::kFloat);
  decoder.parameters()[0].value.detach().fill_(1);
  EXPECT_EQ(read_file(folder.path() / "model.safetensors"), before);
}

using TensorMap = std::map<std::string, at::Tensor>;

// The message with which a checkpoint is refused whose tensors were changed; "loaded" if it is not.
std::string load_changed(const std::function<void(TensorMap&)>& change) {
  test::TemporaryFolder folder;
  std::filesystem::copy_file(golden_folder("qwen2") / "config.json", folder.path() / "config.json");
  const SafetensorsReader reader(golden_folder("qwen2"));
  TensorMap tensors;
  for (const std::string& name : reader.names())
    tensors[name] = reader.get(name);
  change(tensors);
  write_safetensors(folder.path() / "model.safetensors", {tensors.begin(), tensors.end()});
  const std::optional<Error> error = test::thrown([&] { load_decoder(folder.path(), at::kFloat); });
  if (!error) return "loaded";
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  return error->message();
}

void expect_refused(const std::function<void(TensorMap&)>& change, const std::string& part) {
  const std::string message = load_changed(change);
  EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
}

TEST(Checkpoint, NamesTheTensorThatDoesNotFit) {
  EXPECT_EQ(load_changed([](TensorMap&) {}), "loaded");
  expect_refused([](TensorMap& t) { t.erase("model.norm.weight"); },
                 "'model.norm.weight' is missing");
  expect_refused([](TensorMap& t) { t["extra.weight"] = at::zeros({1}); },
                 "'extra.weight' does not belong");
  expect_refused([](TensorMap& t) { t["model.norm.weight"] = at::zeros({31}); }, "[31]");
  expect_refused([](TensorMap& t) { t["model.norm.weight"] = at::zeros({32}, at::kInt); },
                 "floating");

  // The second copy of a tied head is shared, not read.
  EXPECT_EQ(load_changed(
                [](TensorMap& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"].clone(); }),
            "loaded");
}

// A copy that is none would be lost, and nobody would hear of it.
TEST(Checkpoint, ATiedHeadWithOtherNumbersIsRefused) {
  const auto with_head = [](TensorMap& t, const at::Tensor& head) { t["lm_head.weight"] = head; };
  expect_refused(
      [&](TensorMap& t) { with_head(t, t.at("model.embed_tokens.weight").add(0.5)); },
      "'lm_head.weight' is not the same as 'model.embed_tokens.weight', and config.json says");
  expect_refused(
      [&](TensorMap& t) {
        with_head(t, t.at("model.embed_tokens.weight").narrow(0, 0, 3).clone());
      },
      "\"tie_word_embeddings\": false");

  // The same numbers in another dtype, and NaN, are equal copies.
  EXPECT_EQ(load_changed([&](TensorMap& t) {
              const at::Tensor& embedding = t.at("model.embed_tokens.weight");
              with_head(t, embedding.to(at::kDouble));
            }),
            "loaded");
  EXPECT_EQ(load_changed([&](TensorMap& t) {
              at::Tensor embedding = t.at("model.embed_tokens.weight").clone();
              embedding.fill_(std::numeric_limits<float>::quiet_NaN());
              t["model.embed_tokens.weight"] = embedding;
              with_head(t, embedding.clone());
            }),
            "loaded");
}

// As transformers ties to whichever of the two is there.
TEST(Checkpoint, ATiedModelWithItsHeadAloneIsLoaded) {
  test::TemporaryFolder folder, half;
  std::filesystem::copy_file(golden_folder("qwen2") / "config.json", folder.path() / "config.json");
  const SafetensorsReader reader(golden_folder("qwen2"));
  ASSERT_TRUE(read_model_config(folder.path()).tie_word_embeddings);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : reader.names())
    tensors.emplace_back(name == "model.embed_tokens.weight" ? "lm_head.weight" : name,
                         reader.get(name));
  write_safetensors(folder.path() / "model.safetensors", tensors);

  const Decoder decoder = load_decoder(folder.path(), at::kFloat);
  const Decoder original = load_decoder(golden_folder("qwen2"), at::kFloat);
  EXPECT_EQ(weights_fingerprint(decoder), weights_fingerprint(original));
  EXPECT_EQ(weights_fingerprint(folder.path(), at::kFloat), weights_fingerprint(original));

  // What is made of it has the embedding, by its name.
  RewriteOptions options{.config = read_model_config(folder.path())};
  rewrite_checkpoint(folder.path(), half.path(), options);
  EXPECT_TRUE(SafetensorsReader(half.path()).contains("model.embed_tokens.weight"));
  EXPECT_EQ(weights_fingerprint(half.path(), at::kFloat), weights_fingerprint(original));
}

TEST(Checkpoint, APrefixOfTheNamesIsNamed) {
  expect_refused(
      [](TensorMap& t) {
        TensorMap wrapped;
        for (const auto& [name, value] : t)
          wrapped["_orig_mod." + name] = value;
        t = wrapped;
      },
      "is missing; the files have '_orig_mod.model.embed_tokens.weight'");
  expect_refused(
      [](TensorMap& t) {
        TensorMap base;
        for (const auto& [name, value] : t)
          base[name.substr(name.find('.') + 1)] = value;
        t = base;
      },
      "is missing; the files have 'embed_tokens.weight'");
}

// What load_decoder says of a folder with this under this name instead of weights.
std::string load_instead(const std::string& name, const std::string& content) {
  test::TemporaryFolder folder;
  std::filesystem::copy_file(golden_folder("qwen2") / "config.json", folder.path() / "config.json");
  write_file_atomically(folder.path() / name, content);
  const std::optional<Error> error = test::thrown([&] { load_decoder(folder.path(), at::kFloat); });
  if (!error) return "loaded";
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << name;
  return error->message();
}

TEST(Checkpoint, OtherFilesThanWeightsAreNamed) {
  struct Case {
    std::string name, content, part;
  };
  const std::string weights = read_file(golden_folder("qwen2") / "model.safetensors");
  const std::string pickle = std::string("\x80\x02", 2) + "}q";
  const Case cases[] = {
      {"model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
       "git lfs pull"},
      {"model.safetensors", "<!DOCTYPE html><html>", "is an HTML page"},
      {"model.safetensors", pickle, "is a pickle of Python; expected a safetensors file"},
      {"model.safetensors", "GGUF and more", "is a GGUF model"},
      {"model.safetensors", weights.substr(0, weights.size() / 2), "the file may be truncated"},
      {"model.safetensors", weights.substr(0, 20), "the file may be truncated"},
      {"model.safetensors.index.json", "{", "not valid JSON"},
      {"model.safetensors.index.json", "<html>", "is an HTML page"},
      {"config.json", "version https://git-lfs.github.com/spec/v1\n",
       "config.json: is a Git LFS pointer"},
      {"pytorch_model.bin", pickle, "'pytorch_model.bin' is a pickle of PyTorch"},
      {"model-q8.gguf", "GGUF", "'model-q8.gguf' is a GGUF model"},
      {"weights.safetensors", weights, "a model in one file is called model.safetensors"},
      {"adapter_model.safetensors", weights, "holds an adapter of PEFT"},
  };
  for (const auto& [name, content, part] : cases) {
    const std::string message = load_instead(name, content);
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
  }
}

}  // namespace
}  // namespace retort::models
