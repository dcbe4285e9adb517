#include "models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "models/checkpoint.h"
#include "models/gemm.h"
#include "models/generate.h"
#include "models/kernels.h"
#include "models/safetensors.h"
#include "tests/models/golden.h"

namespace retort::models {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.family = Family::kQwen2;
  config.vocab_size = 300, config.hidden_size = 128, config.intermediate_size = 256,
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4, config.num_key_value_heads = 2, config.head_dim = 32;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.1;
  config.attention_bias = true;
  config.sliding_window = {0, 0};
  return config;
}

std::vector<int32_t> some_tokens(size_t count, uint32_t state) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>((state = state * 1664525u + 1013904223u) >> 8) % 300);
  return ids;
}

std::vector<std::pair<std::string, at::Tensor>> tensors_of(const Decoder& decoder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value, shard] : decoder.parameters())
    tensors.emplace_back(name, value);
  return tensors;
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).norm() / b.to(at::kDouble).norm()).item<double>();
}

ErrorCode code_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kRemote;
}

// --- products and kernels, large enough for the fast paths ---

TEST(Gemm, LargeProductsAgreeWithFp64) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({160, 256}), w = at::randn({192, 256}), b = at::randn({192}),
                   g = at::randn({160, 192});
  const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble), gd = g.to(at::kDouble);
  EXPECT_LT(relative(linear_forward(x, w, b), xd.mm(wd.t()) + b), 1e-6);
  EXPECT_LT(relative(linear_forward(x, w, {}), xd.mm(wd.t())), 1e-6);
  EXPECT_LT(relative(linear_grad_input(g, w), gd.mm(wd)), 1e-6);
  EXPECT_LT(relative(linear_grad_weight(g, x), gd.t().mm(xd)), 1e-6);
  EXPECT_TRUE(linear_grad_weight(g, x).is_contiguous());
}

TEST(Gemm, PaddedRowsTakeFewValues) {
  EXPECT_EQ(padded_rows(0), 0);
  EXPECT_EQ(padded_rows(3), 3);
  EXPECT_EQ(padded_rows(9), 16);
  EXPECT_EQ(padded_rows(64), 64);
  EXPECT_EQ(padded_rows(65), 96);
}

TEST(Kernels, SwigluOverTheWholeRange) {
  const at::Tensor gate = at::linspace(-120, 120, 4801), up = at::linspace(-2, 3, 4801),
                   dout = at::linspace(1, -1, 4801);
  at::Tensor y = at::empty_like(gate), dgate = at::empty_like(gate), dup = at::empty_like(gate);
  swiglu_forward(gate.const_data_ptr<float>(), up.const_data_ptr<float>(),
                 y.mutable_data_ptr<float>(), 4801);
  swiglu_backward(dout.const_data_ptr<float>(), gate.const_data_ptr<float>(),
                  up.const_data_ptr<float>(), dgate.mutable_data_ptr<float>(),
                  dup.mutable_data_ptr<float>(), 4801);
  at::Tensor g = gate.to(at::kDouble).set_requires_grad(true),
             u = up.to(at::kDouble).set_requires_grad(true);
  const at::Tensor expected = at::silu(g) * u;
  torch::autograd::backward({expected}, {dout.to(at::kDouble)});
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected.detach(), 1e-6, 1e-30));
  EXPECT_TRUE(at::allclose(dgate.to(at::kDouble), g.grad(), 2e-6, 1e-7));
  EXPECT_TRUE(at::allclose(dup.to(at::kDouble), u.grad(), 2e-6, 1e-30));
  float nan = NAN, one = 1, out = 0;
  swiglu_forward(&nan, &one, &out, 1);
  EXPECT_TRUE(std::isnan(out));
}

// Two continuations of a beginning that is computed once, against two sequences: hidden states and
// gradients.
TEST(Decoder, ForksEqualTwoSequences) {
  for (const int64_t window : {0, 8, 40}) {
    ModelConfig config = small_config();
    config.sliding_window = {0, window};
    config.qk_norm = true;
    Decoder decoder = Decoder::random(config, 5, at::kFloat);
    decoder.set_requires_grad(true);
    const std::vector<int32_t> prompt = some_tokens(25, 1), first = some_tokens(12, 2),
                               second = some_tokens(30, 3);
    const auto joined = [](std::vector<int32_t> a, const std::vector<int32_t>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    const PackedTokens two =
        pack_rows({joined(prompt, first), some_tokens(9, 4), joined(prompt, second)});
    PackedTokens forked = pack_rows({joined(joined(prompt, first), second), some_tokens(9, 4)});
    forked.positions.narrow(0, 37, 30).copy_(at::arange(25, 55));
    forked.forks = {{.prefix = 25, .begin = 37}, {}};
    // Rows of the forked layout, in the order of the plain one: the prompt stands there twice.
    const at::Tensor rows =
        at::cat({at::arange(0, 37), at::arange(67, 76), at::arange(0, 25), at::arange(37, 67)});
    const at::Tensor expected = decoder.hidden(two),
                     got = decoder.hidden(forked).index_select(0, rows);
    EXPECT_LT(relative(got.detach(), expected.detach()), 2e-6) << window;
    at::manual_seed(3);
    const at::Tensor direction = at::randn(expected.sizes());
    std::vector<at::Tensor> gradients;
    torch::autograd::backward({expected}, {direction});
    for (const auto& parameter : decoder.parameters())
      gradients.push_back(parameter.value.grad().defined() ? parameter.value.grad().clone()
                                                           : at::Tensor());
    for (const auto& parameter : decoder.parameters())
      parameter.value.mutable_grad().reset();
    torch::autograd::backward({got}, {direction});
    const auto parameters = decoder.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const double tolerance = parameters[i].name.ends_with("k_proj.bias") ? 1e-3 : 1e-5;
      EXPECT_LT(relative(parameters[i].value.grad(), gradients[i]), tolerance)
          << parameters[i].name << " window " << window;
    }
    // It would show if the second continuation saw the first.
    forked.forks.clear();
    EXPECT_GT(relative(decoder.hidden(forked).index_select(0, rows).detach(), expected.detach()),
              1e-3);
  }
}

// The fp32 paths against the ATen paths in fp64, at sizes that use oneDNN, several blocks of a
// window and all threads.
TEST(Decoder, FusedPathsEqualFp64) {
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    ModelConfig config = small_config();
    config.sliding_window = {0, 100};
    config.qk_norm = true;
    Decoder single = Decoder::random(config, 5, at::kFloat);
    std::vector<std::pair<std::string, at::Tensor>> wide;
    for (const auto& [name, value, shard] : single.parameters())
      wide.emplace_back(name, value.to(at::kDouble));
    Decoder twice(config, std::move(wide));
    std::vector<std::vector<int32_t>> rows{some_tokens(301, 1), {},
                                           some_tokens(1, 2),   some_tokens(150, 3),
                                           some_tokens(100, 4), some_tokens(77, 5),
                                           some_tokens(13, 6)};
    const PackedTokens tokens = pack_rows(rows);
    single.set_requires_grad(true), twice.set_requires_grad(true);
    const at::Tensor a = single.hidden(tokens), b = twice.hidden(tokens);
    EXPECT_LT(relative(a.detach(), b.detach()), 1e-5);
    at::manual_seed(3);
    const at::Tensor direction = at::randn(a.sizes());
    torch::autograd::backward({a}, {direction});
    torch::autograd::backward({b}, {direction.to(at::kDouble)});
    const auto mine = single.parameters(), exact = twice.parameters();
    for (size_t i = 0; i < mine.size(); ++i) {
      const std::string& name = mine[i].name;
      if (!exact[i].value.grad().defined()) {
        EXPECT_EQ(name, "lm_head.weight");
        continue;
      }
      // that one nearly cancels
      const double tolerance = name.ends_with("k_proj.bias") ? 1e-3 : 1e-5;
      EXPECT_LT(relative(mine[i].value.grad(), exact[i].value.grad()), tolerance)
          << name << " threads=" << threads;
    }
  }
  at::set_num_threads(1);
}

TEST(Decoder, GradientOnlyWhereAsked) {
  const PackedTokens tokens = pack_rows({some_tokens(20, 1), some_tokens(12, 9)});
  for (const bool checkpointing : {false, true}) {
    Decoder decoder = Decoder::random(small_config(), 5, at::kFloat);
    decoder.set_gradient_checkpointing(checkpointing);
    std::vector<std::string> asked{"model.layers.1.mlp.up_proj.weight",
                                   "model.layers.0.self_attn.q_proj.bias"};
    for (auto& [name, value, shard] : decoder.parameters()) {
      at::Tensor leaf = value;
      leaf.set_requires_grad(std::find(asked.begin(), asked.end(), name) != asked.end());
    }
    torch::autograd::backward({decoder.hidden(tokens).square().sum()}, {});
    for (const auto& [name, value, shard] : decoder.parameters()) {
      const bool wanted = std::find(asked.begin(), asked.end(), name) != asked.end();
      EXPECT_EQ(value.grad().defined(), wanted) << name;
      if (wanted) {
        EXPECT_GT(value.grad().abs().max().item<double>(), 0) << name;
      }
    }
  }
}

TEST(Decoder, CheckpointingChangesNoBit) {
  const PackedTokens tokens = pack_rows({some_tokens(90, 1), some_tokens(42, 9)});
  std::vector<at::Tensor> first;
  for (const int64_t every : {0, 1, 2}) {
    Decoder decoder = Decoder::random(small_config(), 5, at::kFloat);
    decoder.set_requires_grad(true);
    decoder.set_gradient_checkpointing(every > 0, std::max<int64_t>(every, 1));
    torch::autograd::backward({decoder.logits(decoder.hidden(tokens)).square().sum()}, {});
    for (size_t i = 0; i < decoder.parameters().size(); ++i) {
      const at::Tensor grad = decoder.parameters()[i].value.grad();
      if (every == 0) {
        first.push_back(grad);
      } else {
        EXPECT_TRUE(at::equal(grad, first[i]))
            << decoder.parameters()[i].name << " every " << every;
      }
    }
  }
}

TEST(Decoder, AnEmptyPackRunsForwardAndBackward) {
  Decoder decoder = Decoder::random(small_config(), 5, at::kFloat);
  decoder.set_requires_grad(true);
  const at::Tensor out = decoder.hidden(pack_rows({}));
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 128}));
  torch::autograd::backward({out.sum()}, {});
  for (const auto& [name, value, shard] : decoder.parameters()) {
    if (value.grad().defined()) {
      EXPECT_EQ(value.grad().abs().max().item<double>(), 0) << name;
    }
  }
}

TEST(Decoder, RandomIsAFunctionOfConfigAndSeed) {
  const Decoder a = Decoder::random(small_config(), 7, at::kFloat),
                b = Decoder::random(small_config(), 7, at::kFloat);
  const Decoder c = Decoder::random(small_config(), 8, at::kFloat);
  EXPECT_EQ(weights_fingerprint(a), weights_fingerprint(b));
  EXPECT_NE(weights_fingerprint(a), weights_fingerprint(c));
  EXPECT_NE(weights_fingerprint(a),
            weights_fingerprint(Decoder::random(small_config(), 7, at::kBFloat16)));
  const at::Tensor embedding = a.parameters().front().value;
  EXPECT_NEAR(embedding.std().item<double>(), 0.1, 0.002);
  EXPECT_NEAR(embedding.mean().item<double>(), 0, 0.002);
  EXPECT_FALSE(at::equal(a.parameters().back().value, embedding));  // an untied head of its own
  for (const auto& [name, value, shard] : a.parameters()) {
    if (name.ends_with("norm.weight")) {
      EXPECT_TRUE((value == 1).all().item<bool>()) << name;
    }
    if (name.ends_with("bias")) {
      EXPECT_TRUE((value == 0).all().item<bool>()) << name;
    }
  }
  int64_t elements = 0;
  for (const auto& [name, value, shard] : a.parameters())
    elements += value.numel();
  EXPECT_EQ(elements, small_config().num_parameters());
}

TEST(Decoder, RefusesTensorsThatDoNotFit) {
  const auto good = tensors_of(Decoder::random(small_config(), 7, at::kFloat));
  auto build = [](std::vector<std::pair<std::string, at::Tensor>> tensors) {
    return code_of([&] { Decoder decoder(small_config(), tensors); });
  };
  auto missing = good, surplus = good, shape = good, dtype = good;
  missing.erase(missing.begin() + 3);
  surplus.emplace_back("model.layers.9.mlp.up_proj.weight", at::zeros({1}));
  shape[4].second = at::zeros({3, 3});
  dtype[4].second = dtype[4].second.to(at::kDouble);
  EXPECT_EQ(build(missing), ErrorCode::kMismatch);
  EXPECT_EQ(build(surplus), ErrorCode::kMismatch);
  EXPECT_EQ(build(shape), ErrorCode::kMismatch);
  EXPECT_EQ(build(dtype), ErrorCode::kMismatch);
}

TEST(Decoder, RefusesTokensThatDoNotFit) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  auto run = [&](const PackedTokens& tokens) { return code_of([&] { decoder.hidden(tokens); }); };
  EXPECT_EQ(run(pack_rows({{1, 300}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run(pack_rows({{-1}})), ErrorCode::kInvalidArgument);
  PackedTokens broken = pack_rows({{1, 2, 3}});
  broken.cu_seqlens = {0, 2};
  EXPECT_EQ(run(broken), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] {
              pack_padded(at::zeros({1, 3}, at::kLong), at::tensor({1, 0, 1}).view({1, 3}));
            }),
            ErrorCode::kInvalidArgument);
}

// --- generation ---

TEST(Generate, EveryPromptAsIfAlone) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 11; ++i)
    prompts.push_back(some_tokens(1 + 7 * i, i));
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.max_batch = 4;
  for (const double temperature : {0.0, 0.8}) {
    options.temperature = temperature;
    options.seed = 3;
    const std::vector<Completion> together = generate(decoder, prompts, options);
    GenerateOptions alone = options;
    alone.max_batch = 1;
    const std::vector<Completion> one_by_one = generate(decoder, prompts, alone);
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(together[i].token_ids, one_by_one[i].token_ids) << i;
  }
}

TEST(Generate, StopsAtAnEndToken) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  GenerateOptions options;
  options.max_new_tokens = 10;
  const std::vector<std::vector<int32_t>> prompts{some_tokens(5, 1), some_tokens(9, 2)};
  const std::vector<Completion> free_run = generate(decoder, prompts, options);
  options.eos_token_ids = {299, free_run[0].token_ids[4]};
  std::vector<std::vector<int32_t>> streamed(2);
  const std::vector<Completion> out =
      generate(decoder, prompts, options,
               [&](size_t sample, int32_t token) { streamed[sample].push_back(token); });
  EXPECT_EQ(out[0].finish_reason, FinishReason::kEos);
  EXPECT_LE(out[0].token_ids.size(), 5u);
  EXPECT_EQ(out[0].token_ids.back(), options.eos_token_ids[1]);
  EXPECT_EQ(out[0].logps.size(), out[0].token_ids.size());
  for (size_t i = 0; i < 2; ++i)
    EXPECT_EQ(streamed[i], out[i].token_ids);
  EXPECT_TRUE(generate(decoder, {}, options).empty());
}

// Frequencies of the first sampled token over many seeds against the softmax.
TEST(Generate, SamplesFromTheDistribution) {
  ModelConfig config = small_config();
  config.vocab_size = 12;
  config.initializer_range = 0.15;
  const Decoder decoder = Decoder::random(config, 7, at::kFloat);
  const std::vector<std::vector<int32_t>> prompts(4000, std::vector<int32_t>{3, 5});
  const at::Tensor states = decoder.hidden(pack_rows({prompts[0]}));
  const at::Tensor logits = decoder.logits(states)[1].to(at::kDouble);
  GenerateOptions options;
  options.max_new_tokens = 1;
  options.max_batch = 4000;
  struct Setting {
    double temperature, top_p;
    int64_t top_k;
  };
  for (const Setting& setting :
       {Setting{1.0, 1.0, 0}, Setting{0.5, 1.0, 0}, Setting{1.0, 1.0, 3}, Setting{1.0, 0.6, 0}}) {
    options.temperature = setting.temperature, options.top_p = setting.top_p,
    options.top_k = setting.top_k;
    at::Tensor expected = at::softmax(logits / setting.temperature, 0);
    const auto [sorted, order] = expected.sort(0, true);
    double before = 0;
    for (int64_t rank = 0; rank < 12; ++rank) {
      const bool cut = (setting.top_k > 0 && rank >= setting.top_k) || before >= setting.top_p;
      before += sorted[rank].item<double>();
      if (cut) expected[order[rank].item<int64_t>()] = 0;
    }
    expected /= expected.sum();
    at::Tensor counts = at::zeros({12}, at::kDouble);
    for (const Completion& completion : generate(decoder, prompts, options)) {
      counts[completion.token_ids[0]] += 1;
      EXPECT_NEAR(completion.logps[0],
                  at::log_softmax(logits, 0)[completion.token_ids[0]].item<double>(), 1e-4);
    }
    EXPECT_LT((counts / 4000 - expected).abs().max().item<double>(), 0.03)
        << setting.temperature << setting.top_p << setting.top_k;
    EXPECT_EQ(counts.masked_select(expected == 0).sum().item<double>(), 0);
  }
}

TEST(Generate, RefusesOptionsThatMakeNoSense) {
  const Decoder decoder = Decoder::random(small_config(), 7, at::kFloat);
  auto run = [&](GenerateOptions options, std::vector<std::vector<int32_t>> prompts) {
    return code_of([&] { generate(decoder, prompts, options); });
  };
  EXPECT_EQ(run({.max_new_tokens = 0}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.temperature = -1}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.top_p = 0}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.top_k = -1}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({.max_batch = 0}, {{1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(run({}, {{1}, {}}), ErrorCode::kInvalidArgument);
  auto weights = tensors_of(decoder);
  weights[0].second.fill_(NAN);
  EXPECT_EQ(code_of([&] { generate(Decoder(small_config(), weights), {{1}}, {}); }),
            ErrorCode::kCorrupt);
}

// --- checkpoints ---

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
    TemporaryFolder first, second;
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
  TemporaryFolder folder;
  save_decoder(decoder, at::kBFloat16, golden_folder("mistral_sharded"), folder.path());
  EXPECT_EQ(read_model_config(folder.path()).torch_dtype, "bfloat16");
  EXPECT_EQ(SafetensorsReader(folder.path()).get("lm_head.weight").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(SafetensorsReader(folder.path()).sharded());
}

TEST(Checkpoint, LoadedWeightsAreWritableAndTheirOwn) {
  TemporaryFolder folder;
  for (const std::string& file : listing(golden_folder("qwen3"))) {
    std::filesystem::copy_file(golden_folder("qwen3") / file, folder.path() / file);
  }
  const std::string before = read_file(folder.path() / "model.safetensors");
  Decoder decoder = load_decoder(folder.path(), at::kFloat);
  decoder.parameters()[0].value.detach().fill_(1);
  EXPECT_EQ(read_file(folder.path() / "model.safetensors"), before);
}

TEST(Checkpoint, NamesTheTensorThatDoesNotFit) {
  auto with_tensors = [](const std::function<void(std::map<std::string, at::Tensor>&)>& change) {
    TemporaryFolder folder;
    std::filesystem::copy_file(golden_folder("qwen2") / "config.json",
                               folder.path() / "config.json");
    const SafetensorsReader reader(golden_folder("qwen2"));
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : reader.names())
      tensors[name] = reader.get(name);
    change(tensors);
    write_safetensors(folder.path() / "model.safetensors", {tensors.begin(), tensors.end()});
    try {
      load_decoder(folder.path(), at::kFloat);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kMismatch);
      return e.message();
    }
    return std::string("loaded");
  };
  EXPECT_EQ(with_tensors([](auto&) {}), "loaded");
  // tied
  EXPECT_EQ(
      with_tensors([](auto& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"].clone(); }),
      "loaded");
  EXPECT_NE(with_tensors([](auto& t) {
              t.erase("model.norm.weight");
            }).find("'model.norm.weight' is missing"),
            std::string::npos);
  EXPECT_NE(with_tensors([](auto& t) {
              t["extra.weight"] = at::zeros({1});
            }).find("'extra.weight' does not belong"),
            std::string::npos);
  EXPECT_NE(with_tensors([](auto& t) { t["model.norm.weight"] = at::zeros({31}); }).find("[31]"),
            std::string::npos);
  EXPECT_NE(with_tensors([](auto& t) {
              t["model.norm.weight"] = at::zeros({32}, at::kInt);
            }).find("floating"),
            std::string::npos);
}

}  // namespace
}  // namespace retort::models
