// What a generator's answer says of each completion, there and back.
#include "roles/generator/samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

const ExpectedSamples kExpected{
    .request_id = 1, .completions = 2, .max_new_tokens = 4, .vocab_rows = 10};

Samples packed(std::vector<float> logps, std::vector<float> sampling_logps) {
  const std::vector<IndexedCompletion> completions{
      {1, {.token_ids = {4, 9}, .logps = logps, .sampling_logps = sampling_logps}}, {0, {}}};
  Samples samples = pack_completions(completions);
  samples.request_id = 1;
  samples.generator = "generator/0";
  return samples;
}

models::Completion arrived(const Samples& samples) {
  check_samples(samples, kExpected, "generator/0");
  return unpack_completions(samples).front().completion;
}

TEST(Samples, KeepBothLogProbabilities) {
  const models::Completion one = arrived(packed({-1, -2}, {-3, -4}));
  EXPECT_EQ(one.token_ids, (std::vector<int32_t>{4, 9}));
  EXPECT_EQ(one.logps, (std::vector<float>{-1, -2}));
  EXPECT_EQ(one.sampling_logps, (std::vector<float>{-3, -4}));
}

// An engine's numbers may be of one distribution alone.
TEST(Samples, LackTheLogProbabilitiesThatNobodyKnows) {
  const models::Completion raw = arrived(packed({-1, -2}, {}));
  EXPECT_EQ(raw.logps, (std::vector<float>{-1, -2}));
  EXPECT_TRUE(raw.sampling_logps.empty());
  const models::Completion none = arrived(packed({}, {}));
  EXPECT_EQ(none.token_ids.size(), 2u);
  EXPECT_TRUE(none.logps.empty());
}

// Three of the model's tokens, drawn with two versions, and one that answered it.
models::Completion of_turns() {
  return {.token_ids = {1, 2, 3, 4},
          .spans = {{.source = models::SpanSource::kModel, .weight_version = 6, .tokens = 1},
                    {.source = models::SpanSource::kEnvironment, .tokens = 1},
                    {.source = models::SpanSource::kModel, .weight_version = 7, .tokens = 2}},
          .logps = {-1, 0, -2, -3},
          .sampling_logps = {-1, 0, -2, -3}};
}
models::Completion of_an_episode() {
  return {.token_ids = {8, 9, 5},
          .spans = {{.source = models::SpanSource::kPrompt, .tokens = 2},
                    {.source = models::SpanSource::kModel, .weight_version = 7, .tokens = 1}},
          .episode = R"({"reward": 1})",
          .logps = {0, 0, -1},
          .sampling_logps = {0, 0, -1}};
}

Samples labelled(const std::vector<IndexedCompletion>& completions) {
  Samples samples = pack_completions(completions);
  samples.request_id = 1;
  samples.generator = "generator/0";
  samples.weight_version = 7;
  return samples;
}
ExpectedSamples of_version_7(bool episodes) {
  ExpectedSamples expected = kExpected;
  expected.weight_version = 7;
  expected.episodes = episodes;
  return expected;
}

void expect_equal(const models::Completion& got, const models::Completion& expected) {
  EXPECT_EQ(got.token_ids, expected.token_ids);
  EXPECT_EQ(got.spans, expected.spans);
  EXPECT_EQ(got.episode, expected.episode);
  EXPECT_EQ(got.logps, expected.logps);
  EXPECT_EQ(got.sampling_logps, expected.sampling_logps);
}

TEST(Samples, KeepSpans) {
  const models::Completion plain{
      .token_ids = {4, 9}, .logps = {-1, -2}, .sampling_logps = {-3, -4}};
  const Samples samples = labelled({{1, of_turns()}, {0, plain}});
  EXPECT_EQ(samples.span_counts.numel(), 2);
  EXPECT_EQ(samples.span_lengths.numel(), 3);
  check_samples(samples, of_version_7(false), "generator/0");
  const std::vector<IndexedCompletion> got = unpack_completions(samples);
  expect_equal(got.at(0).completion, of_turns());
  expect_equal(got.at(1).completion, plain);
}

TEST(Samples, SendNothingOfSpansThatNoCompletionHas) {
  const Samples samples = packed({-1, -2}, {-3, -4});
  for (const at::Tensor* one :
       {&samples.span_counts, &samples.span_lengths, &samples.span_sources, &samples.span_versions})
    EXPECT_EQ(one->numel(), 0);
  EXPECT_TRUE(samples.episodes.empty());
  EXPECT_TRUE(arrived(samples).spans.empty());
}

// An episode may end before the model has said anything; then its numbers are known in any case.
TEST(Samples, KeepEpisodes) {
  const models::Completion silent{.token_ids = {8},
                                  .spans = {{.source = models::SpanSource::kPrompt, .tokens = 1}},
                                  .episode = R"({"reward": null})",
                                  .logps = {0},
                                  .sampling_logps = {0}};
  const Samples samples = labelled({{1, of_an_episode()}, {0, silent}});
  check_samples(samples, of_version_7(true), "generator/0");
  const std::vector<IndexedCompletion> got = unpack_completions(samples);
  expect_equal(got.at(0).completion, of_an_episode());
  expect_equal(got.at(1).completion, silent);

  models::Completion unknown = of_an_episode();
  unknown.logps.clear();
  const Samples none = labelled({{1, unknown}, {0, silent}});
  EXPECT_EQ(none.logps.numel(), 0);
  EXPECT_EQ(none.sampling_logps.numel(), 4);
  EXPECT_NO_THROW(check_samples(none, of_version_7(true), "generator/0"));
}

TEST(Samples, WithSpansThatCannotBeAreRefused) {
  const auto refused = [](const std::function<void(Samples&)>& spoil) {
    Samples samples = labelled({{1, of_turns()}, {0, {}}});
    spoil(samples);
    return test::code_of([&] { check_samples(samples, of_version_7(false), "generator/0"); });
  };
  const auto set = [](at::Tensor& vector, int64_t place, int64_t value) {
    vector = vector.clone();
    vector[place] = value;
  };
  using Spoil = std::function<void(Samples&)>;
  const std::vector<std::pair<const char*, Spoil>> corrupted{
      {"more tokens than there are", [&](Samples& s) { set(s.span_lengths, 0, 2); }},
      {"no tokens", [&](Samples& s) { set(s.span_lengths, 0, 0), set(s.span_lengths, 2, 3); }},
      {"less than none",
       [&](Samples& s) { set(s.span_lengths, 0, -1), set(s.span_lengths, 2, 4); }},
      {"fewer spans than are counted", [&](Samples& s) { set(s.span_counts, 0, 2); }},
      {"more", [&](Samples& s) { set(s.span_counts, 1, 1); }},
      {"less than none of another", [&](Samples& s) { set(s.span_counts, 1, -1); }},
      {"counts of one completion",
       [](Samples& s) { s.span_counts = s.span_counts.narrow(0, 0, 1); }},
      {"a version for each but one",
       [](Samples& s) { s.span_versions = s.span_versions.narrow(0, 0, 2); }},
      {"an unknown source", [&](Samples& s) { set(s.span_sources, 0, 3); }},
      {"a prompt where none was asked for",
       [&](Samples& s) {
         set(s.span_sources, 0, 2);
         set(s.span_versions, 0, 0);
       }},
      {"a version of what nobody drew", [&](Samples& s) { set(s.span_versions, 1, 6); }},
      {"none at all", [](Samples& s) { s.span_counts = at::Tensor(); }},
  };
  for (const auto& [what, spoil] : corrupted)
    EXPECT_EQ(refused(spoil), ErrorCode::kCorrupt) << what;

  // A token of later weights than the answer's belongs to something else.
  EXPECT_EQ(refused([&](Samples& s) { set(s.span_versions, 2, 8); }), ErrorCode::kMismatch);
  EXPECT_EQ(refused([&](Samples& s) { set(s.span_versions, 2, -1); }), ErrorCode::kMismatch);
}

TEST(Samples, OfEpisodesSayOfEachWhatItCameTo) {
  const auto refused = [](bool episodes, const std::function<void(Samples&)>& spoil) {
    Samples samples = labelled({{1, of_an_episode()}});
    spoil(samples);
    return test::code_of([&] { check_samples(samples, of_version_7(episodes), "generator/0"); });
  };
  EXPECT_EQ(refused(true, [](Samples& s) { s.episodes.clear(); }), ErrorCode::kCorrupt);
  EXPECT_EQ(refused(true, [](Samples& s) { s.episodes.emplace_back("{}"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(refused(true, [](Samples& s) { s.episodes[0].clear(); }), ErrorCode::kCorrupt);
  EXPECT_EQ(refused(false, [](Samples&) {}), ErrorCode::kCorrupt);

  // The prompt stands before all others, and is there; then the model speaks, and an environment
  // answers it once.
  using models::SpanSource;
  const auto spoken = [&](const std::vector<SpanSource>& sources) {
    models::Completion one = of_an_episode();
    one.token_ids.assign(sources.size(), 5);
    one.logps.assign(sources.size(), 0);
    one.sampling_logps.assign(sources.size(), 0);
    one.spans.clear();
    for (const SpanSource source : sources)
      one.spans.push_back({.source = source, .tokens = 1});
    const Samples samples = labelled({{1, one}});
    ExpectedSamples expected = of_version_7(true);
    expected.max_new_tokens = 9;
    return test::thrown([&] { check_samples(samples, expected, "generator/0"); });
  };
  constexpr SpanSource kP = SpanSource::kPrompt, kM = SpanSource::kModel,
                       kE = SpanSource::kEnvironment;
  for (const auto& fine : std::vector<std::vector<SpanSource>>{
           {}, {kP}, {kP, kM}, {kP, kM, kE}, {kP, kM, kE, kM}, {kP, kM, kM, kE, kM}})
    EXPECT_FALSE(spoken(fine)) << spoken(fine)->what();
  for (const auto& wrong : std::vector<std::vector<SpanSource>>{
           {kM}, {kE}, {kM, kE}, {kP, kE}, {kP, kM, kE, kE}, {kE, kM}}) {
    const auto error = spoken(wrong);
    EXPECT_TRUE(error && error->code() == ErrorCode::kCorrupt) << wrong.size();
  }
  EXPECT_EQ(refused(true,
                    [](Samples& s) {
                      s.span_counts = at::tensor(std::vector<int32_t>(), at::kInt);
                      s.span_lengths = at::tensor(std::vector<int32_t>(), at::kInt);
                      s.span_sources = at::tensor(std::vector<int32_t>(), at::kByte);
                      s.span_versions = at::tensor(std::vector<int64_t>(), at::kLong);
                    }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(refused(true,
                    [](Samples& s) {
                      s.span_sources = at::tensor({0, 2}, at::kByte);
                      s.span_versions = at::tensor({7, 0}, at::kLong);
                    }),
            ErrorCode::kCorrupt);
}

TEST(Samples, OfEpisodesAreAsLongAsThoseMayBe) {
  GenerateRequest request{.request_id = 1,
                          .prompt_ids = at::tensor(std::vector<int32_t>(), at::kInt),
                          .cu_seqlens = at::tensor({0, 0}, at::kInt),
                          .num_generations = 2,
                          .sample_ids = at::tensor({4, 5}, at::kLong),
                          .draw = {.max_new_tokens = 1},
                          .episodes = {{.seed = 3, .row = "{}"}}};
  Samples samples = labelled({{0, of_an_episode()}});
  request.weight_version = 7;
  ExpectedSamples expected = expected_samples(request, 10, 3);
  EXPECT_TRUE(expected.episodes);
  EXPECT_EQ(expected.completions, 2);
  samples.sequence_hash = expected.sequence_hash;
  EXPECT_NO_THROW(check_samples(samples, expected, "generator/0"));
  expected = expected_samples(request, 10, 2);
  EXPECT_EQ(test::code_of([&] { check_samples(samples, expected, "generator/0"); }),
            ErrorCode::kCorrupt);
}

TEST(Samples, OfSomeTokensAloneAreNone) {
  EXPECT_DEATH(packed({-1}, {}), "some tokens alone");
  Samples samples = packed({-1, -2}, {-3, -4});
  samples.logps = at::tensor({-1.0F});
  EXPECT_EQ(test::code_of([&] { arrived(samples); }), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace retort::roles
