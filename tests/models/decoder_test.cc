#include "models/decoder/decoder.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "models/checkpoint/checkpoint.h"
#include "tests/models/small_model.h"
#include "tests/support/relative_difference.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {

using test::code_of;
using test::relative_difference;

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The gradients so far, which are taken away.
std::vector<at::Tensor> take_gradients(const Decoder& decoder) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : decoder.parameters()) {
    const at::Tensor& grad = parameter.value.grad();
    gradients.push_back(grad.defined() ? grad.clone() : at::Tensor());
    parameter.value.mutable_grad().reset();
  }
  return gradients;
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

    // The same tokens as three sequences, and with the first and the last of them as a fork.
    const std::vector<int32_t> prompt = some_tokens(25, 1);
    const std::vector<int32_t> first = some_tokens(12, 2);
    const std::vector<int32_t> second = some_tokens(30, 3);
    const PackedTokens two =
        pack_rows({joined(prompt, first), some_tokens(9, 4), joined(prompt, second)});
    PackedTokens forked = pack_rows({joined(joined(prompt, first), second), some_tokens(9, 4)});
    forked.positions.narrow(0, 37, 30).copy_(at::arange(25, 55));
    forked.forks = {{.prefix = 25, .begins = {37}}, {}};

    // Rows of the forked layout, in the order of the plain one: the prompt stands there twice.
    const at::Tensor rows =
        at::cat({at::arange(0, 37), at::arange(67, 76), at::arange(0, 25), at::arange(37, 67)});
    const at::Tensor expected = decoder.hidden(two);
    const at::Tensor got = decoder.hidden(forked).index_select(0, rows);
    EXPECT_LT(relative_difference(got.detach(), expected.detach()), 2e-6) << window;

    // Gradients along a random direction; that of the key bias nearly cancels.
    at::manual_seed(3);
    const at::Tensor direction = at::randn(expected.sizes());
    torch::autograd::backward({expected}, {direction});
    const std::vector<at::Tensor> gradients = take_gradients(decoder);
    torch::autograd::backward({got}, {direction});
    const auto parameters = decoder.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const double tolerance = parameters[i].name.ends_with("k_proj.bias") ? 1e-3 : 1e-5;
      EXPECT_LT(relative_difference(parameters[i].value.grad(), gradients[i]), tolerance)
          << parameters[i].name << " window " << window;
    }

    // It would show if the second continuation saw the first.
    forked.forks.clear();
    EXPECT_GT(relative_difference(decoder.hidden(forked).index_select(0, rows).detach(),
                                  expected.detach()),
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

    // The same weights in both widths.
    Decoder single = Decoder::random(config, 5, at::kFloat);
    std::vector<std::pair<std::string, at::Tensor>> wide;
    for (const auto& [name, value, shard] : single.parameters())
      wide.emplace_back(name, value.to(at::kDouble));
    Decoder twice(config, std::move(wide));
    single.set_requires_grad(true);
    twice.set_requires_grad(true);

    // Sequences around the window's length, an empty one and one of a single token among them.
    const PackedTokens tokens = pack_rows({some_tokens(301, 1),
                                           {},
                                           some_tokens(1, 2),
                                           some_tokens(150, 3),
                                           some_tokens(100, 4),
                                           some_tokens(77, 5),
                                           some_tokens(13, 6)});
    const at::Tensor a = single.hidden(tokens);
    const at::Tensor b = twice.hidden(tokens);
    EXPECT_LT(relative_difference(a.detach(), b.detach()), 1e-5);

    // Gradients along a random direction; that of the key bias nearly cancels.
    at::manual_seed(3);
    const at::Tensor direction = at::randn(a.sizes());
    torch::autograd::backward({a}, {direction});
    torch::autograd::backward({b}, {direction.to(at::kDouble)});
    const auto mine = single.parameters();
    const auto exact = twice.parameters();
    for (size_t i = 0; i < mine.size(); ++i) {
      const std::string& name = mine[i].name;
      if (!exact[i].value.grad().defined()) {
        EXPECT_EQ(name, "lm_head.weight");
        continue;
      }
      const double tolerance = name.ends_with("k_proj.bias") ? 1e-3 : 1e-5;
      EXPECT_LT(relative_difference(mine[i].value.grad(), exact[i].value.grad()), tolerance)
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

// A bucket of gradients is sent when all of its have come, so that one which does not would keep
// the other ranks waiting.
TEST(Decoder, AnEmptyPackGivesEveryParameterAGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ModelConfig config = small_config();
    config.qk_norm = true;
    Decoder decoder = Decoder::random(config, 5, dtype);
    decoder.set_requires_grad(true);
    const at::Tensor out = decoder.hidden(pack_rows({}));
    EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 128}));

    torch::autograd::backward({out.sum()}, {});
    for (const auto& [name, value, shard] : decoder.parameters()) {
      if (name == "lm_head.weight") continue;  // the losses'
      ASSERT_TRUE(value.grad().defined()) << name << " " << dtype;
      EXPECT_EQ(value.grad().abs().max().item<double>(), 0) << name << " " << dtype;
    }
  }
}

TEST(Decoder, RandomIsAFunctionOfConfigAndSeed) {
  const Decoder a = Decoder::random(small_config(), 7, at::kFloat);
  const Decoder b = Decoder::random(small_config(), 7, at::kFloat);
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
  auto missing = good;
  auto surplus = good;
  auto shape = good;
  auto dtype = good;
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
}

}  // namespace
}  // namespace retort::models
