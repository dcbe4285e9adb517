// The requests of a generator's callers: what is given out when, again, and for how long it is
// kept.
#include "roles/generator/request_table.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using Indices = std::vector<int64_t>;
using test::code_of;

constexpr int64_t kSamples = 4;

class RequestTableTest : public ::testing::Test {
 protected:
  // In the hands of the engine.
  void begin(uint64_t id) {
    table.add({kCaller, id}, {.request_id = id,
                              .prompt_ids = at::tensor({1, 2}, at::kInt),
                              .cu_seqlens = at::tensor({0, 2}, at::kInt),
                              .num_generations = kSamples,
                              .sample_ids = at::arange(kSamples, at::kLong)});
    Samples label;
    label.generator = "generator/0";
    label.weight_version = 3;
    table.begin_draw({kCaller, id}, id, std::move(label));
  }
  bool end(uint64_t id, int64_t index, size_t tokens = 1) {
    models::Completion completion{.token_ids = std::vector<int32_t>(tokens, 7),
                                  .logps = std::vector<float>(tokens, -1.0F),
                                  .sampling_logps = std::vector<float>(tokens, -1.0F)};
    return table.add_completion({kCaller, id}, {index, std::move(completion)});
  }
  Future<Samples> collect(uint64_t id, int64_t have,
                          std::shared_ptr<std::atomic<bool>> cancelled = nullptr) {
    if (!cancelled) cancelled = std::make_shared<std::atomic<bool>>(false);
    return table.collect({id, have}, {.peer = kCaller, .cancelled = std::move(cancelled)});
  }
  static Indices indices(const Samples& samples) {
    Indices indices;
    for (const IndexedCompletion& one : unpack_completions(samples))
      indices.push_back(one.index);
    return indices;
  }

  static constexpr const char* kCaller = "student/0";
  RequestTable table;
};

TEST_F(RequestTableTest, AnswersAsSoonAsThereIsMore) {
  begin(1);
  auto first = collect(1, 0);
  table.answer();
  EXPECT_FALSE(first.ready());
  EXPECT_FALSE(end(1, 2));
  EXPECT_FALSE(end(1, 0));
  EXPECT_FALSE(first.ready()) << "both go in one answer";
  table.answer();
  const Samples some = first.get();
  EXPECT_EQ(indices(some), (Indices{2, 0}));
  EXPECT_FALSE(some.last);
  EXPECT_EQ(some.generator, "generator/0");
  EXPECT_EQ(some.weight_version, 3u);

  auto second = collect(1, 2);
  EXPECT_FALSE(end(1, 3));
  EXPECT_TRUE(end(1, 1));
  table.answer();
  const Samples rest = second.get();
  EXPECT_EQ(indices(rest), (Indices{3, 1}));
  EXPECT_TRUE(rest.last);
  EXPECT_GE(rest.seconds, some.seconds);
}

TEST_F(RequestTableTest, GivesAgainWhatTheCallerDoesNotHave) {
  begin(1);
  end(1, 1);
  EXPECT_EQ(indices(collect(1, 0).get()), Indices{1});
  EXPECT_EQ(indices(collect(1, 0).get()), Indices{1}) << "the reply was lost";
  for (const int64_t index : {0, 2, 3})
    end(1, index);
  EXPECT_EQ(indices(collect(1, 1).get()), (Indices{0, 2, 3}));
  EXPECT_EQ(indices(collect(1, 1).get()), (Indices{0, 2, 3})) << "the last, too";
  EXPECT_EQ(indices(collect(1, 0).get()), (Indices{1, 0, 2, 3})) << "one that begins anew";
}

TEST_F(RequestTableTest, IsForgottenOnceTheCallerHasAll) {
  begin(1);
  for (const int64_t index : {0, 1, 2, 3})
    end(1, index);
  EXPECT_TRUE(collect(1, 0).get().last);
  EXPECT_FALSE(table.empty());
  const Samples nothing = collect(1, kSamples).get();
  EXPECT_TRUE(nothing.last);
  EXPECT_EQ(nothing.indices.numel(), 0);
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(code_of([&] { collect(1, kSamples); }), ErrorCode::kInvalidArgument);
}

TEST_F(RequestTableTest, RefusesMoreThanWasGivenOut) {
  begin(1);
  end(1, 1);
  EXPECT_EQ(code_of([&] { collect(1, 2); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { collect(1, -1); }), ErrorCode::kInvalidArgument);
}

TEST_F(RequestTableTest, OneCollectAtATime) {
  begin(1);
  auto first = collect(1, 0), second = collect(1, 0);
  EXPECT_EQ(code_of([&] { first.get(); }), ErrorCode::kCancelled);
  end(1, 0);
  table.answer();
  EXPECT_EQ(indices(second.get()), Indices{0});
}

TEST_F(RequestTableTest, AnErrorComesOnceInPlaceOfSamples) {
  begin(1);
  begin(2);
  end(1, 0);
  auto waiting = collect(1, 1);
  const auto error =
      std::make_exception_ptr(Error(ErrorCode::kCancelled, "given up for other weights"));
  table.fail({kCaller, 1}, error);
  EXPECT_EQ(code_of([&] { waiting.get(); }), ErrorCode::kCancelled);
  table.fail({kCaller, 2}, error);
  EXPECT_EQ(code_of([&] { collect(2, 0).get(); }), ErrorCode::kCancelled);
  EXPECT_TRUE(table.empty());
}

TEST_F(RequestTableTest, AnAnswerHoldsNoMoreThanItsTokens) {
  begin(1);
  const auto half = static_cast<size_t>(RequestTable::kMaxTokensPerAnswer / 2);
  end(1, 0, half);
  end(1, 1, half);
  end(1, 2, half);
  end(1, 3, 3 * half);
  EXPECT_EQ(indices(collect(1, 0).get()), (Indices{0, 1}));
  EXPECT_EQ(indices(collect(1, 2).get()), Indices{2});
  const Samples last = collect(1, 3).get();
  EXPECT_EQ(indices(last), Indices{3}) << "one is given out in any case";
  EXPECT_TRUE(last.last);
}

TEST_F(RequestTableTest, WhatALostCallerHasNotTakenIsUnwanted) {
  using Keys = std::vector<RequestTable::Key>;
  begin(1);
  begin(2);
  for (const int64_t index : {0, 1, 2, 3})
    end(1, index);
  collect(1, 0).get();
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  auto waiting = collect(2, 0, cancelled);
  EXPECT_EQ(table.unwanted({kCaller}), Keys{}) << "between two collects it is wanted";
  EXPECT_EQ(table.unwanted({}), (Keys{{kCaller, 1}}));
  *cancelled = true;
  EXPECT_EQ(table.unwanted({kCaller}), (Keys{{kCaller, 2}}));
}

}  // namespace
}  // namespace retort::roles
