// A replica goes on with a sample as if it had never stopped, as turns of an episode need it.
#include "roles/generator/replica_engine.h"
#include "tests/roles/generator_fixture.h"

namespace retort::roles {
namespace {

std::vector<models::Completion> drawn_by(ReplicaEngine& engine, const GenerateRequest& request) {
  engine.submit(request);
  std::vector<models::Completion> completions(static_cast<size_t>(request.sample_ids.numel()));
  while (engine.step()) {
  }
  for (FinishedSample& sample : engine.finished())
    completions.at(static_cast<size_t>(sample.index)) = std::move(sample.completion);
  return completions;
}

template <class T>
std::vector<T> behind(const std::vector<T>& values, size_t cut) {
  return {values.begin() + static_cast<ptrdiff_t>(cut), values.end()};
}

// The whole sample, and its rest behind `cut` tokens as a request of one prompt.
struct Cut {
  GenerateRequest whole;
  std::vector<int32_t> prompt;

  GenerateRequest rest(const models::Completion& drawn, size_t cut) const {
    std::vector<int32_t> ids = prompt;
    ids.insert(ids.end(), drawn.token_ids.begin(),
               drawn.token_ids.begin() + static_cast<ptrdiff_t>(cut));
    GenerateRequest request = generate_request(2, 0, {ids}, 1);
    request.sample_ids = whole.sample_ids;
    request.draw = whole.draw;
    request.draw.max_new_tokens -= static_cast<int64_t>(cut);
    request.continues = static_cast<int64_t>(cut);
    return request;
  }
};

TEST(ContinuedSample, HasTheBitsOfAnUninterruptedOne) {
  Cut one;
  for (int32_t i = 0; i < 21; ++i)
    one.prompt.push_back(i * 7 % 60);
  one.whole = generate_request(1, 0, {one.prompt}, 1, 40);
  one.whole.draw.eos_token_ids.clear();

  for (const bool share : {true, false}) {
    const models::EngineOptions options{.num_blocks = 64, .share_prefixes = share};
    ReplicaEngine engine(golden_decoder(), models::Tokenizer::load(golden_model()), options);
    const models::Completion drawn = drawn_by(engine, one.whole).at(0);
    ASSERT_EQ(drawn.token_ids.size(), 40u);
    for (const size_t cut : {1, 11, 13, 27, 30}) {
      const models::Completion rest = drawn_by(engine, one.rest(drawn, cut)).at(0);
      EXPECT_EQ(rest.token_ids, behind(drawn.token_ids, cut)) << cut;
      EXPECT_EQ(rest.logps, behind(drawn.logps, cut)) << cut;
      EXPECT_EQ(rest.sampling_logps, behind(drawn.sampling_logps, cut)) << cut;
      EXPECT_EQ(rest.finish_reason, models::FinishReason::kLength) << cut;
    }
  }
}

}  // namespace
}  // namespace retort::roles
