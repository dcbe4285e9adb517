// Contracts as files and as text, and what the rules of check_contract say by themselves.
#include "engines/contract/contract.h"

#include <gtest/gtest.h>

#include "engines/contract/options.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

// The contract of an engine that has passed.
Contract good() {
  Contract contract;
  contract.engine = EngineKind::kLlamacpp;
  contract.version = "b1 \"x\"";
  contract.url = "http://host:8080";
  contract.vocab_rows = 1000;
  contract.tokenizer_ids = 990;
  contract.highest_id = true;
  contract.draws = contract.scores = true;
  contract.top_k = 1000;
  contract.whole_mass = 1.0000001;
  contract.ids = IdProof::kText;
  contract.drawn = DrawnMeaning::kRaw;
  contract.truncates = true;
  contract.local = {.largest = 0.1, .mean = 0.01, .count = 3};
  contract.seeds_differ = true;
  contract.requests = 71;
  return contract;
}

Needs teacher(double temperature, bool tail_mass, int64_t k) {
  Needs needs{.what = Purpose::kTopK, .role = "teacher", .objective = "distill"};
  needs.temperature = temperature;
  needs.tail_mass = tail_mass;
  needs.top_k = k;
  return needs;
}

TEST(Contract, IsReadAsItWasWritten) {
  const Contract contract = good();
  const std::string text = to_json(contract);
  const Contract read = contract_from_json(text);
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.version, contract.version);
  EXPECT_EQ(read.engine, EngineKind::kLlamacpp);
  EXPECT_EQ(read.whole_mass, contract.whole_mass);
  EXPECT_EQ(read.local.largest, 0.1);
  EXPECT_EQ(read.truncates, true);
  EXPECT_EQ(read.seeds_repeat, std::nullopt);
  check_contract(read, {.role = "reference", .objective = "dpo"});
}

TEST(Contract, AFileThatIsNoneIsCorrupt) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = to_json(good());
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const auto corrupt = [](const std::string& part, const std::string& text) {
    test::expect_error(ErrorCode::kCorrupt, part, [&] { contract_from_json(text); });
  };
  corrupt("no JSON object", "[]");
  corrupt("no JSON object", to_json(good()).substr(0, 40));
  corrupt("vocab_rows is missing", changed("\"vocab_rows\"", "\"rows\""));
  corrupt("not known", changed("{", "{\"more\": 1,"));
  corrupt("local.largest", changed("\"largest\": 0.1", "\"largest\": \"0.1\""));
  corrupt("drawn", changed("\"drawn\": \"raw\"", "\"drawn\": \"row\""));
  corrupt("requests", changed("\"requests\": 71", "\"requests\": 7.5"));
}

TEST(Contract, TheTableNamesWhatWasFound) {
  const std::string table = contract_table(good());
  for (const char* part : {"llamacpp b1", "http://host:8080", "top-k up to 1000", "raw",
                           "at most 0.1", "not measured", "71 requests"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
}

// A name is the server's own: it moves no cursor, and makes no line of its own.
TEST(Contract, TheTableShowsWhatAServerSaysAsText) {
  Contract contract = good();
  contract.served_model = "qwen3\x1b]0;owned\a\r\nasked                   0 requests";
  const std::string table = contract_table(contract);
  EXPECT_NE(table.find("qwen3\\x1b]0;owned\\x07\\r\\nasked"), std::string::npos) << table;
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

TEST(Contract, RefusalsNameRoleObjectiveEngineAndRemedy) {
  Needs needs{.what = Purpose::kDrawsWithRatio, .role = "generator", .objective = "grpo"};
  check_contract(good(), needs);
  needs.sampling.temperature = 2;
  for (const char* part :
       {"role 'generator'", "grpo needs", "are raw", "temperature 1, top_p 1",
        "--logprobs-mode processed_logprobs", "engine=llamacpp", "url=http://host:8080"})
    test::expect_refused(part, [&] { check_contract(good(), needs); });
  needs.sampling.temperature = 0;
  test::expect_refused("temperature 0", [&] { check_contract(good(), needs); });
  needs.sampling = {.repetition_penalty = 1.1};
  test::expect_refused("repetition_penalty 1", [&] { check_contract(good(), needs); });
}

TEST(Contract, SaysWhatNumbersOfTheSameWeightsMayDifferBy) {
  Contract contract = good();
  contract.tolerance = 0.4;
  EXPECT_EQ(allowed_of_replicas(contract).largest, 1) << "they may run on other devices";
  EXPECT_EQ(allowed_of_replicas(contract).mean, 0.1);
  EXPECT_EQ(allowed_of_weights(contract).largest, 0.4);
  EXPECT_NEAR(allowed_of_weights(contract).mean, 0.04, 1e-12) << "four times what was seen";
  EXPECT_EQ(allowed_of_replicas(contract, /*reward=*/-50).largest, 1) << "a share of it";
  EXPECT_EQ(allowed_of_replicas(contract, /*reward=*/0.1).mean, 0.02) << "of one at least";

  // The probe saw nothing, or more than a copy may differ by on average.
  contract.local.mean = 0;
  EXPECT_EQ(allowed_of_weights(contract).mean, 1e-4);
  contract.local.mean = 0.05;
  EXPECT_EQ(allowed_of_weights(contract).mean, 0.1);

  contract.tolerance_given = true;
  contract.tolerance = 0.3;
  EXPECT_EQ(allowed_of_replicas(contract).largest, 0.3);
  EXPECT_EQ(allowed_of_replicas(contract, -50).largest, 0.3);
  EXPECT_EQ(allowed_of_weights(contract).largest, 0.3);
  EXPECT_EQ(allowed_of_weights(contract).mean, 0.1);
}

TEST(Contract, ATemperedTeacherHasNoTail) {
  check_contract(good(), teacher(1, true, 64));
  check_contract(good(), teacher(2, false, 64));
  check_contract(good(), teacher(2, true, 1000));
  test::expect_refused("tail: renormalize", [] { check_contract(good(), teacher(2, true, 64)); });
  test::expect_refused("gives 1000", [] { check_contract(good(), teacher(1, true, 1001)); });
}

// Ids that the tokenizer lacks are asked for beside those that are wanted: ten here, at most 16.
TEST(Contract, PaddedHeadsNeedMoreIds) {
  Contract contract = good();
  contract.engine = EngineKind::kVllm;
  contract.top_k = 64;
  check_contract(contract, teacher(1, true, 54));
  test::expect_refused("--max-logprobs 65",
                       [&] { check_contract(contract, teacher(1, true, 55)); });
  contract.tokenizer_ids = 900;
  test::expect_refused("16 for ids of the engine's head",
                       [&] { check_contract(contract, teacher(1, true, 54)); });
}

TEST(Contract, WhatWasNotShownIsNotThere) {
  Needs needs{.what = Purpose::kDraws, .role = "generator", .objective = "grpo"};
  needs.sampling.top_p = 0.9;
  Contract contract = good();
  contract.truncates = std::nullopt;
  test::expect_refused("top_p", [&] { check_contract(contract, needs); });
  contract.truncates = true;
  check_contract(contract, needs);
  contract.highest_id = false;
  test::expect_error(ErrorCode::kMismatch, "highest id 989",
                     [&] { check_contract(contract, needs); });
  needs = {.what = Purpose::kHiddenStates, .role = "teacher", .objective = "distill"};
  test::expect_refused("payload: topk", [&] { check_contract(good(), needs); });
}

}  // namespace
}  // namespace retort::engines
