#include "engines/weights/receipt.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "engines/weights/random_ids.h"
#include "models/ops/packed.h"
#include "roles/payload/payload.h"

namespace retort::engines {
namespace {

constexpr int64_t kSequence = 32;
constexpr int64_t kTopK = 16;
constexpr uint64_t kCanarySeed = 0x7265746f7274;
constexpr uint64_t kSameStream = uint64_t{1} << 63;  // no version's

// The first sequence is the same for every version of a process: if a cache still has what older
// weights computed, it shows there. The others share no prefix with those of another version.
std::vector<ScoreRequest> canaries(const Engine& engine, int64_t vocab, uint64_t version,
                                   const CanaryOptions& options) {
  const int64_t top_k = std::min(kTopK, engine.abilities().max_top_k);
  const uint64_t same = random_bits(kCanarySeed ^ options.nonce, kSameStream);
  const uint64_t seed = random_bits(kCanarySeed ^ options.nonce, version);
  std::vector<ScoreRequest> all{score_all(random_ids(same, 0, kSequence, vocab), top_k)};
  for (int64_t begin = 0; begin < options.tokens; begin += kSequence) {
    // at least two: one is given, the other is scored
    const int64_t length = std::max<int64_t>(2, std::min(kSequence, options.tokens - begin));
    all.push_back(score_all(random_ids(seed, begin, length, vocab), top_k));
  }
  return all;
}

// [N, V] after each token of one sequence: the decoder's own log-probabilities.
at::Tensor own_log_probs(const models::Decoder& decoder, const ScoreRequest& request) {
  const c10::InferenceMode inference;
  const at::Tensor hidden = decoder.hidden(models::pack_rows({request.token_ids}));
  const models::Head head = decoder.head();
  return roles::make_payload(hidden, head.weight, {.kind = roles::PayloadKind::kFull}, {}, {},
                             head.softcap)
      .logps;
}

// Collects differences as they come: their number, sum and maximum.
struct Differences {
  int64_t count = 0;
  double sum = 0, largest = 0;

  void add(float theirs, float ours) {
    const double difference = std::abs(static_cast<double>(theirs) - static_cast<double>(ours));
    ++count;
    sum += difference;
    // a NaN is larger than anything
    largest = difference <= largest    ? largest
              : std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                       : difference;
  }
};

void compare(const ScoreRequest& request, const Scored& theirs, const at::Tensor& ours,
             Differences& differences) {
  // The engine chooses the ids of a top-k, so they are checked before they index our own numbers.
  const auto own = [&](int64_t row, int64_t id) {
    if (id < 0 || id >= ours.size(1))
      throw Error(ErrorCode::kMismatch,
                  "the engine lists an id that the student does not have: another vocabulary")
          .with("id", id)
          .with("ids", ours.size(1));
    return ours.const_data_ptr<float>()[row * ours.size(1) + id];
  };
  for (size_t r = 0; r < request.positions.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    if (!theirs.given.empty()) differences.add(theirs.given[r], own(row, request.token_ids[r + 1]));
    for (int64_t k = 0; k < request.top_k; ++k) {
      const int64_t place = row * request.top_k + k;
      differences.add(theirs.log_probs.const_data_ptr<float>()[place],
                      own(row, theirs.ids.const_data_ptr<int32_t>()[place]));
    }
  }
}

// Compares a token that was drawn after a whole sequence.
void compare_drawn(const Drawn& drawn, const at::Tensor& ours, Differences& differences) {
  const bool one = drawn.token_ids.size() == 1 && drawn.log_probs.size() == 1;
  if (!one || drawn.token_ids[0] < 0 || drawn.token_ids[0] >= ours.size(1))
    throw Error(ErrorCode::kMismatch,
                "the engine was asked for one token, and drew none, several, or one that the "
                "student does not have")
        .with("tokens", drawn.token_ids.size());
  differences.add(
      drawn.log_probs[0],
      ours.const_data_ptr<float>()[(ours.size(0) - 1) * ours.size(1) + drawn.token_ids[0]]);
}

}  // namespace

std::string to_json(const Receipt& receipt, const std::string& process) {
  return nlohmann::ordered_json{{"process", process},
                                {"weight_version", receipt.version},
                                {"tokens", receipt.tokens},
                                {"largest_difference", receipt.largest},
                                {"mean_difference", receipt.mean},
                                {"tolerance", receipt.tolerance},
                                {"mean_tolerance", receipt.mean_tolerance},
                                {"accepted", receipt.accepted()}}
      .dump();
}

Receipt check_weights(Engine& engine, const models::Decoder& decoder, uint64_t version,
                      const CanaryOptions& options, Deadline deadline) {
  // Everything is asked before anything is computed here, so that the engine works meanwhile.
  const std::vector<ScoreRequest> requests =
      canaries(engine, decoder.config().vocab_size, version, options);
  // Draws go through caches that scoring may pass by; at temperature 1 every log-probability of a
  // drawn token is the model's.
  Future<Drawn> drawn;
  if (engine.abilities().draws)
    drawn = engine.draw({.prompt = requests[0].token_ids, .how = {.max_new_tokens = 1}}, deadline);
  std::vector<Future<Scored>> answers;
  for (const ScoreRequest& request : requests)
    answers.push_back(engine.score(request, deadline));

  Differences differences;
  for (size_t i = 0; i < requests.size(); ++i) {
    const at::Tensor ours = own_log_probs(decoder, requests[i]);
    compare(requests[i], answers[i].get(), ours, differences);
    if (i == 0 && drawn.valid()) compare_drawn(drawn.get(), ours, differences);
  }
  return {
      .version = version,
      .tokens = differences.count,
      .largest = differences.largest,
      .mean = differences.count > 0 ? differences.sum / static_cast<double>(differences.count) : 0,
      .tolerance = options.tolerance,
      .mean_tolerance = options.mean_tolerance};
}

}  // namespace retort::engines
