// Model folders written once more: another dtype, other shards, more tokens.
#include "models/checkpoint/rewrite_checkpoint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "models/add_tokens.h"
#include "models/checkpoint/checkpoint.h"
#include "models/safetensors/safetensors.h"
#include "models/text/tokenizer.h"
#include "tests/models/golden.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

namespace fs = std::filesystem;

int64_t weight_files(const fs::path& folder) {
  int64_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") ++count;
  return count;
}

TEST(RewriteCheckpoint, KeepsTheModelInOtherShards) {
  for (const char* name : {"llama", "phi3_partial", "gemma3", "mistral_sharded"}) {
    const fs::path source = golden_folder(name);
    const std::string model = weights_fingerprint(load_decoder(source, at::kFloat));
    for (const uint64_t limit : {uint64_t{8192}, uint64_t{1} << 30}) {
      test::TemporaryFolder folder;
      rewrite_checkpoint(source, folder.path(),
                         {.config = read_model_config(source), .max_shard_bytes = limit});
      EXPECT_EQ(weights_fingerprint(load_decoder(folder.path(), at::kFloat)), model) << name;
      EXPECT_EQ(weight_files(folder.path()) > 1, limit == 8192) << name;
    }
  }
}

TEST(RewriteCheckpoint, RoundsToAnotherDtype) {
  const fs::path source = golden_folder("qwen3");
  for (const char* dtype : {"bfloat16", "float16"}) {
    test::TemporaryFolder folder;
    RewriteOptions options{.config = read_model_config(source)};
    options.config.torch_dtype = dtype;
    rewrite_checkpoint(source, folder.path(), options);
    EXPECT_EQ(read_model_config(folder.path()).torch_dtype, dtype);
    const SafetensorsReader before(source), after(folder.path());
    ASSERT_EQ(after.names(), before.names());
    for (const std::string& name : before.names())
      EXPECT_TRUE(at::equal(after.get(name), before.get(name).to(parse_dtype(dtype)))) << name;
  }
}

TEST(RewriteCheckpoint, RefusesNumbersThatTheDtypeCannotHold) {
  const fs::path source = golden_folder("qwen3");
  RewriteOptions options{.config = read_model_config(source)};
  options.change = [](const std::string& name, const at::Tensor& read) {
    return name == "model.norm.weight" ? at::full_like(read, 7e4) : read;
  };
  test::TemporaryFolder wide, narrow;
  EXPECT_NO_THROW(rewrite_checkpoint(source, wide.path(), options));
  options.config.torch_dtype = "float16";
  test::expect_error(ErrorCode::kInvalidArgument, "model.norm.weight",
                     [&] { rewrite_checkpoint(source, narrow.path(), options); });
}

// A nano student whose 64 tokens are words.
fs::path words() { return test::source_folder() / "tests/recipes/goldens/llama"; }

struct Added {
  explicit Added(const AddTokensOptions& options, const fs::path& source = words())
      : summary(add_tokens(source, folder.path(), options)),
        tokenizer(Tokenizer::load(folder.path())),
        decoder(load_decoder(folder.path(), at::kFloat)) {}
  at::Tensor row(int64_t id) const { return decoder.parameters().front().value.select(0, id); }

  test::TemporaryFolder folder;
  AddTokensSummary summary;
  Tokenizer tokenizer;
  Decoder decoder;
};

TEST(AddTokens, GoOnFromTheHighestId) {
  const Added added({.tokens = {"<tool>", "w3", "<tool>", "über"}});
  EXPECT_EQ(added.summary.num_added, 2) << "w3 is there, <tool> stands twice";
  EXPECT_EQ(added.summary.first_id, 64);
  EXPECT_EQ(added.summary.vocab_size, 66);
  EXPECT_EQ(added.decoder.config().vocab_size, 66);
  EXPECT_EQ(added.tokenizer.token_to_id("<tool>"), 64);
  EXPECT_EQ(added.tokenizer.token_to_id("über"), 65);
  EXPECT_EQ(added.tokenizer.encode("w1 <tool> w2über", false),
            (std::vector<int32_t>{1, 64, 2, 65}));

  // What was there stays.
  const Decoder before = load_decoder(words(), at::kFloat);
  for (const auto& [name, value, shard] : before.parameters())
    for (const auto& [new_name, new_value, new_shard] : added.decoder.parameters())
      if (name == new_name) {
        EXPECT_TRUE(at::equal(new_value.narrow(0, 0, value.size(0)), value)) << name;
      }

  // A second time nothing is added.
  const Added again({.tokens = {"über", "<tool>"}}, added.folder.path());
  EXPECT_EQ(again.summary.num_added, 0);
  EXPECT_EQ(weights_fingerprint(again.decoder), weights_fingerprint(added.decoder));
}

TEST(AddTokens, SpecialTokensAreNoText) {
  for (const bool special : {false, true}) {
    const Added added({.tokens = {"<tool>"}, .special = special});
    const std::vector<int32_t> ids{1, 64};
    EXPECT_EQ(added.tokenizer.decode(ids, true).find("<tool>") == std::string::npos, special);
    EXPECT_NE(added.tokenizer.decode(ids, false).find("<tool>"), std::string::npos);
  }
}

TEST(AddTokens, RowsAreMadeAsAsked) {
  const at::Tensor old = load_decoder(words(), at::kFloat).parameters().front().value;
  const auto mean = [&](std::initializer_list<int64_t> ids) {
    at::Tensor sum = old.select(0, 0) * 0;
    for (const int64_t id : ids)
      sum = sum + old.select(0, id);
    return sum / static_cast<double>(ids.size());
  };
  const Added described({.tokens = {"x", "y"}, .from = "w3 w5 w9 w9"});
  for (const int64_t id : {64, 65})
    EXPECT_LT((described.row(id) - mean({3, 5, 9, 9})).abs().max().item<double>(), 1e-6);
  const Added own({.tokens = {"w3 w5"}});
  EXPECT_LT((own.row(64) - mean({3, 5})).abs().max().item<double>(), 1e-6);
  const Added copied({.tokens = {"x"}, .init = TokenInit::kCopy, .from = "w7"});
  EXPECT_TRUE(at::equal(copied.row(64), old.select(0, 7)));
  const Added zero({.tokens = {"x"}, .init = TokenInit::kZero});
  EXPECT_EQ(zero.row(64).abs().max().item<double>(), 0);

  // N(0, initializer_range), the same again, another one for another seed or id.
  const Added random({.tokens = {"x", "y"}, .init = TokenInit::kRandom, .seed = 3});
  const Added same({.tokens = {"x", "y"}, .init = TokenInit::kRandom, .seed = 3});
  const Added other({.tokens = {"x", "y"}, .init = TokenInit::kRandom, .seed = 4});
  EXPECT_TRUE(at::equal(random.row(64), same.row(64)));
  EXPECT_FALSE(at::equal(random.row(64), other.row(64)));
  EXPECT_FALSE(at::equal(random.row(64), random.row(65)));
  const double size =
      at::cat({random.row(64), random.row(65)}).square().mean().sqrt().item<double>();
  EXPECT_NEAR(size / random.decoder.config().initializer_range, 1.0, 0.5);
}

// Rows beyond the tokenizer's ids are used before new ones are made.
TEST(AddTokens, UsesRowsThatNoTokenHas) {
  test::TemporaryFolder wide;
  RewriteOptions options{.config = read_model_config(words())};
  options.config.vocab_size = 70;
  options.change = [](const std::string& name, const at::Tensor& read) {
    const bool table = name == "model.embed_tokens.weight" || name == "lm_head.weight";
    return table ? at::cat({read, at::full_like(read.narrow(0, 0, 6), 9.0)}) : read;
  };
  rewrite_checkpoint(words(), wide.path(), options);
  copy_tokenizer_files(words(), wide.path());
  const Added added({.tokens = {"x"}, .init = TokenInit::kZero}, wide.path());
  EXPECT_EQ(added.summary.vocab_size, 70);
  EXPECT_EQ(added.row(64).abs().max().item<double>(), 0);
  EXPECT_EQ(added.row(65).min().item<double>(), 9);
}

TEST(AddTokens, RefusesWhatSaysNothing) {
  const auto refused = [](const AddTokensOptions& options, const char* part) {
    test::TemporaryFolder folder;
    test::expect_error(ErrorCode::kInvalidArgument, part,
                       [&] { add_tokens(words(), folder.path(), options); });
  };
  refused({.tokens = {""}}, "at least one character");
  refused({.tokens = {"x"}, .init = TokenInit::kCopy, .from = "w999"}, "w999");
  refused({.tokens = {"x"}, .init = TokenInit::kZero, .from = "w1"}, "from no token");
}

}  // namespace
}  // namespace retort::models
