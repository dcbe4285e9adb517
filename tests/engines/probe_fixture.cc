#include "tests/engines/probe_fixture.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "engines/contract/options.h"
#include "engines/probing/probe_text.h"
#include "models/ops/packed.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

constexpr int64_t kVocabulary = 320;

models::Tokenizer trained_tokenizer(const std::filesystem::path& folder) {
  models::train_tokenizer(
      {"The cat sat on the mat and looked at the door. It was 7 in the morning,",
       "and the sun had said nothing before. She said that it would rain."},
      {.vocab_size = kVocabulary}, folder);
  return models::Tokenizer::load(folder);
}

models::Decoder random_model(int64_t rows, uint64_t seed) {
  models::ModelConfig config;
  config.family = models::Family::kLlama;
  config.vocab_size = rows;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.3;
  config.sliding_window = {0, 0};
  return models::Decoder::random(config, seed, at::kFloat);
}

// Steps of a fixed size against the gradient's sign: enough to learn one text by heart.
models::Decoder trained_on(models::Decoder model, const std::vector<int32_t>& ids) {
  model.set_requires_grad(true);
  const models::PackedTokens tokens = models::pack_rows({ids});
  const std::vector<int64_t> targets(ids.begin() + 1, ids.end());
  const auto count = static_cast<int64_t>(targets.size());
  for (int step = 0; step < 60; ++step) {
    const at::Tensor logits = model.logits(model.hidden(tokens).narrow(0, 0, count));
    const at::Tensor picked =
        at::log_softmax(logits, 1).gather(1, at::tensor(targets).unsqueeze(1));
    picked.mean().neg().backward();
    for (const auto& parameter : model.parameters()) {
      at::Tensor value = parameter.value.detach();
      value.sub_(parameter.value.grad().sign(), 0.01);
      parameter.value.mutable_grad() = at::Tensor();
    }
  }
  model.set_requires_grad(false);
  return model;
}

}  // namespace

std::unique_ptr<ProbeTest::Shared> ProbeTest::shared_;

ProbeTest::Shared::Shared()
    : tokenizer(trained_tokenizer(folder.path())),
      model(random_model(tokenizer.vocab_size(), 1)),
      other(random_model(tokenizer.vocab_size(), 2)),
      reader(trained_on(random_model(tokenizer.vocab_size(), 3),
                        ProbeText(tokenizer, 0, 99).sequence())) {}

void ProbeTest::SetUpTestSuite() { shared_ = std::make_unique<Shared>(); }
void ProbeTest::TearDownTestSuite() { shared_.reset(); }

Contract ProbeTest::probed(const models::Decoder& served, const Lies& lies,
                           const models::Decoder* local, const ProbeOptions& options) {
  FakeEngine engine(served, lies);
  const ProbeSubject subject{.engine = engine,
                             .tokenizer = tokenizer(),
                             .kind = EngineKind::kVllm,
                             .url = "http://user:secret@host:8000/?key=secret",
                             .vocab_rows = served.config().vocab_size,
                             .end_tokens = {tokenizer().eos_id()},
                             .local = local};
  Contract contract = probe(subject, options, Deadline::after(std::chrono::minutes(5)));
  EXPECT_EQ(contract.requests, engine.requests());
  EXPECT_LE(contract.requests, kMaxProbeRequests);
  EXPECT_LE(contract.tokens, contract.requests * kMaxProbeRequestTokens);
  return contract;
}

void ProbeTest::expect_refused(const Contract& contract, const Needs& needs, ErrorCode code,
                               const std::string& part) {
  test::expect_error(code, part, [&] { check_contract(contract, needs); });
}

}  // namespace retort::engines
