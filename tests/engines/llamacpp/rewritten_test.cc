// Real answers of llama.cpp's server, rewritten on their way: the probe and its contract find what
// was changed before a role is played, receipts find it with new weights.
#include <gtest/gtest.h>

#include "engines/contract/options.h"
#include "engines/probing/probe.h"
#include "engines/weights/receipt.h"
#include "tests/engines/llamacpp/real_server.h"
#include "tests/engines/llamacpp/rewrites.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;
using retort::test::expect_error;
using test::Proxying, test::RealServer, test::RewritingProxy, test::TinyModel, test::soon;

// Two models with one tokenizer, each at a server of its own.
class Rewritten : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::engines_python()) return;
    const std::vector<std::string> options{"--slots", "4", "--context", "128", "--alias", "tiny"};
    model_ = new TinyModel(3);
    other_ = new TinyModel(9);
    server_ = new RealServer(model_->gguf(), options);
    other_server_ = new RealServer(other_->gguf(), options);
  }
  static void TearDownTestSuite() {
    delete other_server_;
    delete server_;
    delete other_;
    delete model_;
  }
  void SetUp() override {
    if (!test::engines_python()) GTEST_SKIP() << "RETORT_ENGINES_PYTHON is not set";
  }

  static Contract probed(const RewritingProxy& proxy) {
    const auto engine = proxy.engine();
    return probe({.engine = *engine,
                  .tokenizer = model_->loaded().tokenizer,
                  .kind = EngineKind::kLlamacpp,
                  .url = proxy.url(),
                  .vocab_rows = model_->vocab_rows(),
                  .end_tokens = {2},
                  .local = &model_->decoder()},
                 {.sampling = {}, .tolerance = {}, .nonce = ++nonce_}, soon());
  }
  static Contract probed(Proxying how) {
    return probed(RewritingProxy(server_->url(), std::move(how)));
  }
  static Needs given() {
    return {.what = Purpose::kGivenLogProbs, .role = "reference", .objective = "dpo"};
  }
  static Needs draws() {
    return {.what = Purpose::kDrawsWithRatio, .role = "generator", .objective = "grpo"};
  }
  // That both a reference and a generator are refused, by what stands in the message.
  static void expect_refused(Proxying how, const std::string& part) {
    const Contract contract = probed(std::move(how));
    for (const Needs& needs : {given(), draws()})
      expect_error(ErrorCode::kMismatch, part, [&] { check_contract(contract, needs); });
  }

  // The receipt of a server that was told to load the student's weights.
  static Receipt receipt(Engine& engine, const TinyModel& student, uint64_t version) {
    return check_weights(engine, student.decoder(), version, {.tokens = 64, .tolerance = 1e-3},
                         soon());
  }
  static Receipt receipt(Proxying how) {
    return receipt(*RewritingProxy(server_->url(), std::move(how)).engine(), *model_, 1);
  }

  static TinyModel *model_, *other_;
  static RealServer *server_, *other_server_;
  static uint64_t nonce_;
};
TinyModel* Rewritten::model_ = nullptr;
TinyModel* Rewritten::other_ = nullptr;
RealServer* Rewritten::server_ = nullptr;
RealServer* Rewritten::other_server_ = nullptr;
uint64_t Rewritten::nonce_ = 0;

// The proxy itself must change nothing, or no test below would prove anything.
TEST_F(Rewritten, UnchangedAnswersAreAccepted) {
  const Contract contract = probed(Proxying{});
  EXPECT_NO_THROW(check_contract(contract, given()));
  EXPECT_NO_THROW(check_contract(contract, draws()));
  EXPECT_EQ(contract.ids, IdProof::kLocalCopy);
  EXPECT_EQ(contract.drawn, DrawnMeaning::kRaw);
  EXPECT_LT(contract.local.largest, 1e-4);
  const Receipt got = receipt(Proxying{});
  EXPECT_TRUE(got.accepted()) << got.largest;
  EXPECT_LT(got.largest, 1e-4);

  // Nor would it if the whole vocabulary, taken apart and put together, were another answer.
  const auto same = [](std::vector<double> log_probs) { return log_probs; };
  EXPECT_LT(receipt(test::redistributed(model_->vocab_rows(), same)).largest, 1e-4);
}

TEST_F(Rewritten, IdsOneOffAreRefused) {
  expect_refused(test::one_id_off(model_->vocab_rows()), "ids are not the tokenizer's");
}

TEST_F(Rewritten, AnotherTokenizerIsRefused) {
  expect_refused(test::another_tokenizer(model_->vocab_rows()), "ids are not the tokenizer's");
}

TEST_F(Rewritten, TemperedLogProbabilitiesAreRefused) {
  expect_refused(test::redistributed(model_->vocab_rows(), test::tempered(1.5)), "local copy");
}

TEST_F(Rewritten, TruncatedLogProbabilitiesAreRefused) {
  expect_refused(test::redistributed(model_->vocab_rows(), test::truncated(0.5, false)),
                 "local copy");
}

TEST_F(Rewritten, TopPRatiosAreRefused) {
  expect_refused(test::redistributed(model_->vocab_rows(), test::truncated(0.9, true)),
                 "local copy");
}

TEST_F(Rewritten, AnotherModelIsRefused) {
  expect_refused({.upstream = [](int64_t) { return other_server_->url(); },
                  .asked = {},
                  .answered = {},
                  .instead = {},
                  .everything = {}},
                 "another model");
}

Proxying routed(std::function<std::string(int64_t)> upstream) {
  return {.upstream = std::move(upstream),
          .asked = {},
          .answered = {},
          .instead = {},
          .everything = {}};
}

// Two replicas behind one address, one of which has other weights.
TEST_F(Rewritten, AnswersOfTwoModelsAreRefused) {
  expect_refused(
      routed([](int64_t n) { return n % 2 == 0 ? server_->url() : other_server_->url(); }),
      "ids are not the tokenizer's");
}

TEST_F(Rewritten, ModelThatChangesDuringTheProbeIsRefused) {
  expect_refused(routed([](int64_t n) { return n < 200 ? server_->url() : other_server_->url(); }),
                 "ids are not the tokenizer's");
}

// A server may have kept the old weights, take them for half of its answers, or change while it is
// asked. None of these gets a receipt for the new ones.
TEST_F(Rewritten, OldWeightsGetNoReceipt) {
  const auto new_from = [&](std::function<bool(int64_t)> is_new) {
    return receipt(
        routed([=](int64_t n) { return is_new(n) ? server_->url() : other_server_->url(); }));
  };
  EXPECT_TRUE(new_from([](int64_t) { return true; }).accepted());
  EXPECT_FALSE(new_from([](int64_t) { return false; }).accepted());
  EXPECT_FALSE(new_from([](int64_t n) { return n % 2 == 0; }).accepted()) << "half an update";
  EXPECT_FALSE(new_from([](int64_t n) { return n >= 20; }).accepted()) << "it came too late";
  EXPECT_FALSE(new_from([](int64_t n) { return n < 60; }).accepted()) << "it was taken back";
}

// Every number is the old weights', of each prompt that was asked before.
TEST_F(Rewritten, StaleCacheGetsNoReceipt) {
  const std::string* current = &other_server_->url();
  Proxying how = test::stale_cache();
  how.upstream = [&current](int64_t) { return *current; };
  const RewritingProxy proxy(server_->url(), std::move(how));
  const auto engine = proxy.engine();
  EXPECT_TRUE(receipt(*engine, *other_, 1).accepted());
  current = &server_->url();
  const Receipt second = receipt(*engine, *model_, 2);
  EXPECT_FALSE(second.accepted()) << second.largest;
}

TEST_F(Rewritten, OtherNumbersGetNoReceipt) {
  const int64_t vocab = model_->vocab_rows();
  EXPECT_FALSE(receipt(test::one_id_off(vocab)).accepted());
  EXPECT_FALSE(receipt(test::another_tokenizer(vocab)).accepted());
  EXPECT_FALSE(receipt(test::redistributed(vocab, test::tempered(1.01))).accepted());
  EXPECT_FALSE(receipt(test::redistributed(vocab, test::truncated(0.99, false))).accepted());
  EXPECT_FALSE(receipt(test::redistributed(vocab, test::truncated(0.99, true))).accepted());
}

}  // namespace
}  // namespace retort::engines
