// Tests what a probe finds of an engine that does what it says.
#include "engines/probing/probe.h"

#include "engines/contract/options.h"
#include "engines/probing/probe_text.h"
#include "tests/engines/probe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

TEST_F(ProbeTest, AnHonestEnginePasses) {
  const Contract contract = probed({});
  EXPECT_EQ(contract.version, "1.2");
  EXPECT_EQ(contract.served_model, "fake");
  EXPECT_EQ(contract.url.find("secret"), std::string::npos);
  EXPECT_EQ(contract.vocab_rows, tokenizer().vocab_size());
  EXPECT_EQ(contract.tokenizer_fingerprint, tokenizer().vocabulary_fingerprint());
  EXPECT_EQ(contract.top_k, tokenizer().vocab_size());
  EXPECT_TRUE(contract.highest_id);

  // What its numbers mean.
  EXPECT_EQ(contract.ids, IdProof::kLocalCopy) << contract.ids_why;
  EXPECT_EQ(contract.drawn, DrawnMeaning::kRaw) << contract.drawn_why;
  EXPECT_EQ(contract.truncates, true);
  EXPECT_EQ(contract.ends, EndProof::kHonoured) << contract.ends_why;
  EXPECT_EQ(contract.seeds_repeat, true);
  EXPECT_EQ(contract.seeds_differ, true);
  EXPECT_EQ(contract.seeds_in_batch, true);
  EXPECT_NEAR(contract.whole_mass.value(), 1, 1e-5);

  // And how far they hold: f32 arithmetic of two implementations.
  for (const Difference& found :
       {contract.repeated, contract.warmed, contract.extended, contract.batched, contract.local})
    EXPECT_GE(found.count, kProbeRows * 2);
  EXPECT_EQ(contract.drawn_and_scored.count, 16);
  EXPECT_LT(contract.local.largest, 1e-4);
  EXPECT_LT(contract.drawn_and_scored.largest, 1e-4);
  EXPECT_EQ(contract.greedy_equal_local, contract.greedy_tokens);
  EXPECT_LT(contract.hidden_difference.value(), 1e-5);
  EXPECT_LT(contract.tolerance, 4e-4);
  EXPECT_GE(contract.tolerance, 1e-4);

  for (const Needs& needs : {ratio(), draws(), given(), top_k(64), hidden()})
    check_contract(contract, needs);
}

// Only who needs it asks, as a server may not survive what it does not know.
TEST_F(ProbeTest, NamedIdsAreComparedWithTheTopK) {
  EXPECT_EQ(probed({}).named_ids, 0);
  expect_refused(probed({}), named(64), ErrorCode::kInvalidArgument, "names are needed");
  const Contract contract = probed({}, {.names_ids = true});
  EXPECT_EQ(contract.named_ids, tokenizer().vocab_size());
  EXPECT_EQ(contract.named.count, (kProbeRows - 1) * 64);
  EXPECT_LT(contract.named.largest, 1e-5);
  check_contract(contract, named(64));
  Needs warm = named(64);
  warm.temperature = 2;
  expect_refused(contract, warm, ErrorCode::kInvalidArgument, "temperature");
  expect_refused(contract, named(1000), ErrorCode::kInvalidArgument, "--max-logprobs 1000");
  Contract padded = contract;  // with rows that are named besides
  padded.vocab_rows = padded.tokenizer_ids + padded.named_ids;
  expect_refused(padded, named(64), ErrorCode::kInvalidArgument, "64, and ");
  EXPECT_NE(contract_table(contract).find("named ids"), std::string::npos);
}

TEST_F(ProbeTest, TextProvesIdsWithoutALocalCopy) {
  const Contract contract = probed(reader(), {}, nullptr);
  EXPECT_EQ(contract.ids, IdProof::kText) << contract.ids_why;
  EXPECT_EQ(contract.local.count, 0);
  check_contract(contract, given());
}

TEST_F(ProbeTest, WithoutTextAndCopyIdsAreUnproven) {
  for (const models::Decoder* untrained : {&model(), &other_model()}) {
    const Contract contract = probed(*untrained, {}, nullptr);
    EXPECT_EQ(contract.ids, IdProof::kUnproven) << contract.ids_why;
    expect_refused(contract, given(), ErrorCode::kMismatch, "nothing shows");
  }
}

TEST_F(ProbeTest, WhatDrawnLogProbabilitiesMean) {
  const models::SamplingOptions all{.top_p = 0.9, .top_k = 5, .min_p = 0.1};
  for (const DrawnMeaning meaning :
       {DrawnMeaning::kRaw, DrawnMeaning::kTempered, DrawnMeaning::kProcessed}) {
    // With every way of truncating, and by the whole vocabulary or two tokens alone.
    for (const int64_t k : {int64_t{320}, int64_t{40}}) {
      Lies lies{.drawn = meaning};
      lies.max_top_k = std::min(k, tokenizer().vocab_size());
      const Contract contract = probed(lies, {.sampling = all});
      EXPECT_EQ(contract.drawn, meaning) << contract.drawn_why;
      EXPECT_EQ(contract.truncates, true) << contract.drawn_why;
    }
  }
}

TEST_F(ProbeTest, GivenLogProbabilitiesAloneTellRawFromTempered) {
  for (const DrawnMeaning meaning : {DrawnMeaning::kRaw, DrawnMeaning::kTempered}) {
    Lies lies{.drawn = meaning};
    lies.max_top_k = 0;
    const Contract contract = probed(lies);
    EXPECT_EQ(contract.top_k, 0);
    EXPECT_EQ(contract.drawn, meaning) << contract.drawn_why;
    // The probe cannot tell at which token a truncation stops.
    EXPECT_EQ(contract.truncates, std::nullopt);
  }
}

TEST_F(ProbeTest, AnEngineThatOnlyDrawsIsComparedWithTheCopy) {
  Lies lies;
  lies.scores = false;
  const Contract contract = probed(lies);
  EXPECT_EQ(contract.ids, IdProof::kLocalCopy) << contract.ids_why;
  EXPECT_EQ(contract.drawn, DrawnMeaning::kRaw) << contract.drawn_why;
  check_contract(contract, ratio());
  expect_refused(contract, given(), ErrorCode::kInvalidArgument, "gives none");

  lies.ids_off = 1;
  const Contract shifted = probed(lies);
  expect_refused(shifted, ratio(), ErrorCode::kMismatch, "ids are not the tokenizer's");
  EXPECT_EQ(probed(model(), lies, nullptr).drawn, DrawnMeaning::kUnknown);
}

// What it never gives is said first, and who does, whatever else is not shown.
TEST_F(ProbeTest, HiddenStatesOfAnEngineWithoutThem) {
  Contract contract = probed(Lies{});
  contract.engine = EngineKind::kLlamacpp;
  contract.gives_hidden_states = false;
  contract.ids = IdProof::kUnproven;
  Needs needs = given();
  needs.what = Purpose::kHiddenStates;
  expect_refused(contract, needs, ErrorCode::kInvalidArgument,
                 "engine: llamacpp never gives them; use payload: topk, a teacher of ours");
  expect_refused(contract, given(), ErrorCode::kMismatch, "name a folder that has them");
}

TEST_F(ProbeTest, AnEngineThatOnlyScores) {
  Lies lies;
  lies.draws = false;
  const Contract contract = probed(lies);
  EXPECT_EQ(contract.drawn, DrawnMeaning::kNone);
  check_contract(contract, top_k(64));
  expect_refused(contract, draws(), ErrorCode::kInvalidArgument, "draws none");
}

TEST_F(ProbeTest, ADrawWithoutLogProbabilitiesHasNoRatio) {
  Lies lies;
  lies.log_probs = false;
  const Contract contract = probed(lies);
  EXPECT_EQ(contract.drawn, DrawnMeaning::kNone);
  check_contract(contract, draws());
  expect_refused(contract, ratio(), ErrorCode::kInvalidArgument, "gives none");
}

TEST_F(ProbeTest, WhatTheRoleAsksForIsTried) {
  Lies lies;
  lies.refuse_min_p = true;
  const ProbeOptions narrow{.sampling = {.temperature = 0.5, .min_p = 0.1}};
  test::expect_refused("min_p is not known here", [&] { probed(lies, narrow); });
  EXPECT_EQ(probed(lies).drawn, DrawnMeaning::kRaw);
}

TEST_F(ProbeTest, TheRecipesToleranceCounts) {
  const Contract contract = probed({}, {.tolerance = 0.25});
  EXPECT_EQ(contract.tolerance, 0.25);
  EXPECT_TRUE(contract.tolerance_given);
  Lies lies;
  lies.batch_noise = 0.01f;
  EXPECT_NEAR(probed(lies).tolerance, 0.04, 0.001);
  expect_refused(probed(lies, {.tolerance = 0.001}), given(), ErrorCode::kMismatch,
                 "beside other requests");
}

TEST_F(ProbeTest, ASmallContextIsRefused) {
  Lies lies;
  lies.context_tokens = 40;
  test::expect_refused("context of 40 tokens", [&] { probed(lies); });
  lies.context_tokens = 64;
  EXPECT_EQ(probed(lies).ids, IdProof::kLocalCopy);
}

TEST_F(ProbeTest, ProbesBeginWithIdsOfTheirOwn) {
  const ProbeText one(tokenizer(), 0, 1);
  const ProbeText two(tokenizer(), 0, 2);
  const auto beginning = [](const std::vector<int32_t>& ids) {
    return std::vector<int32_t>(ids.begin(), ids.begin() + 4);
  };
  EXPECT_NE(beginning(one.sequence()), beginning(two.sequence()));
  EXPECT_NE(beginning(one.sequence(0)), beginning(one.sequence(1)));
  EXPECT_EQ(one.sequence(), ProbeText(tokenizer(), 0, 1).sequence());
}

}  // namespace
}  // namespace retort::engines
