#include "engines/served/engine_payload.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "base/error.h"
#include "engines/contract/contract.h"
#include "engines/contract/tempered_top_k.h"

namespace retort::engines {
namespace {

using roles::Payload;
using roles::PayloadKind;
using roles::PayloadSpec;

// An engine may compute its logits in bfloat16, so its probabilities may sum to a bit above 1.
constexpr double kSumTolerance = 1e-2;
// A tail that is not empty has at least this mass: float32 does not know 1 minus a sum any better,
// and its logarithm must be finite.
constexpr double kSmallestTail = 0x1p-23;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "the engine cannot answer this: " + what);
}

// The number of ids that the engine's head has and the student's lacks.
int64_t masked_ids(const PayloadSpec& spec, int64_t vocab_rows) {
  return spec.common_vocab > 0 ? std::max<int64_t>(0, vocab_rows - spec.common_vocab) : 0;
}

int64_t known_ids(const PayloadSpec& spec, int64_t vocab_rows) {
  return vocab_rows - masked_ids(spec, vocab_rows);
}

// The engine may list ids that the student lacks among its most probable ones. Those are dropped,
// so that many more are asked for.
int64_t asked_ids(const PayloadSpec& spec, int64_t vocab_rows) {
  return std::min(vocab_rows, std::min(spec.top_k, known_ids(spec, vocab_rows)) +
                                  std::min(kMaxMaskedIds, masked_ids(spec, vocab_rows)));
}

// One row of a top-k answer becomes one of the payload.
struct KnownRow {
  std::vector<int32_t> ids;
  std::vector<double> log_probs;
  double masked = 0;  // probability
  double log_tail = 0;
};

void check_sum(double sum) {
  if (sum > 1 + kSumTolerance)
    throw Error(ErrorCode::kCorrupt,
                "the engine's log-probabilities of one position add up to more than 1: they are "
                "not those of the model alone")
        .with("sum", sum);
}

KnownRow known_part(std::span<const int32_t> ids, std::span<const float> log_probs, int64_t k,
                    int64_t known) {
  KnownRow row;
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double probability = std::exp(static_cast<double>(log_probs[i]));
    sum += probability;
    // An id that the student lacks counts for the masked mass alone. What is listed beyond the k
    // that the payload has stays in the tail.
    if (ids[i] >= known) {
      row.masked += probability;
    } else if (row.ids.size() < static_cast<size_t>(k)) {
      row.ids.push_back(ids[i]);
      row.log_probs.push_back(log_probs[i]);
    }
  }

  check_sum(sum);
  if (row.ids.size() < static_cast<size_t>(k))
    throw Error(ErrorCode::kMismatch,
                "too few of the engine's most probable ids are the student's as well: their "
                "vocabularies differ by more than padding")
        .with("wanted", k)
        .with("left", row.ids.size());
  return row;
}

// Renormalises a row over the ids that both models know: the mass on ids that the student lacks is
// divided out. `whole`: the row has every known id, so nothing is left for its tail.
void keep(KnownRow& row, bool whole) {
  const double log_known = std::log1p(-std::min(row.masked, 1 - kSmallestTail));
  double sum = 0;
  for (double& value : row.log_probs) {
    value -= log_known;
    sum += std::exp(value);
  }
  row.log_tail =
      whole ? -std::numeric_limits<double>::infinity() : std::log(std::max(1 - sum, kSmallestTail));
}

Payload top_k_payload(const PayloadSpec& spec, const std::vector<Scored>& answers,
                      int64_t vocab_rows) {
  int64_t rows = 0;
  for (const Scored& answer : answers)
    rows += answer.ids.size(0);
  const int64_t known = known_ids(spec, vocab_rows), k = std::min(spec.top_k, known);
  const bool whole = k == known;

  Payload payload;
  payload.ids = at::empty({rows, k}, at::kInt);
  payload.log_tail = at::empty({rows}, at::kFloat);
  at::Tensor log_probs = at::empty({rows, k}, at::kFloat);
  auto* id = payload.ids.mutable_data_ptr<int32_t>();
  auto* log_prob = log_probs.mutable_data_ptr<float>();
  auto* tail = payload.log_tail.mutable_data_ptr<float>();

  for (const Scored& answer : answers) {
    const auto width = static_cast<size_t>(answer.ids.size(1));
    for (int64_t r = 0; r < answer.ids.size(0); ++r) {
      const size_t at = static_cast<size_t>(r) * width;
      KnownRow row = known_part({answer.ids.const_data_ptr<int32_t>() + at, width},
                                {answer.log_probs.const_data_ptr<float>() + at, width}, k, known);
      keep(row, whole);
      id = std::copy(row.ids.begin(), row.ids.end(), id);
      for (const double value : row.log_probs)
        *log_prob++ = static_cast<float>(value);
      *tail++ = static_cast<float>(row.log_tail);
      payload.masked_mass_sum += row.masked;
    }
  }

  // The constant between logits and log-probabilities cancels among the ids; what lies outside them
  // is only known within bounds.
  if (spec.temperature != 1) {
    const TemperedTopK tempered = tempered_top_k(log_probs, spec.temperature, known);
    log_probs = tempered.log_probs;
    payload.log_tail.fill_(-std::numeric_limits<float>::infinity());
    payload.tail_bound_sum = tempered.mean_most_tail() * static_cast<double>(rows);
  }
  payload.logps = spec.bfloat16 ? log_probs.to(at::kBFloat16) : log_probs;
  return payload;
}

void check_named_spec(const PayloadSpec& spec, int64_t vocab_rows, const Abilities& abilities) {
  if (abilities.max_named_ids == 0)
    refuse(
        "it gives no log-probabilities at ids that the student names for each position, which "
        "vLLM does; use support: teacher");
  if (spec.support == roles::Support::kUnion)
    refuse(
        "its own most probable ids and those that the student names are two questions, and so of "
        "two forward passes; use support: student or teacher");
  if (spec.temperature != 1)
    refuse("log-probabilities at ids that the student names are those at temperature 1");
  const int64_t masked = masked_ids(spec, vocab_rows);
  // Ids that only the engine's head has are named with the student's, so they count against the
  // engine's limit.
  const int64_t named = std::min(spec.top_k, known_ids(spec, vocab_rows)) + masked;
  if (abilities.max_named_ids < named)
    refuse("it takes " + std::to_string(abilities.max_named_ids) + " ids of a position, " +
           std::to_string(named) + " are needed (" + std::to_string(masked) +
           " of them for ids that the student's head lacks); lower distill.loss_top_k, or raise "
           "the engine's own limit (vLLM: --max-logprobs)");
}

}  // namespace

void check_payload_spec(const PayloadSpec& spec, int64_t vocab_rows, const Abilities& abilities) {
  switch (spec.kind) {
    case PayloadKind::kFull:
      refuse("payload: full has a number for each id of the vocabulary; use payload: topk");
    case PayloadKind::kSampled:
      refuse("payload: sampled is drawn by a teacher of ours (`model`); use payload: topk");
    case PayloadKind::kHiddenStates:
      if (!abilities.hidden_states)
        refuse("it gives no hidden states; use payload: topk, or a teacher of ours (`model`)");
      return;
    case PayloadKind::kTargetLogProbs:
      if (!abilities.scores) refuse("it does not score tokens that are given");
      if (spec.temperature != 1)
        refuse("log-probabilities of given tokens are those at temperature 1");
      if (masked_ids(spec, vocab_rows) > 0)
        refuse("its head has ids that the student's lacks, and what lies on them it does not say");
      return;
    case PayloadKind::kTopK:
      if (spec.names_ids()) return check_named_spec(spec, vocab_rows, abilities);
      if (abilities.max_top_k < asked_ids(spec, vocab_rows))
        refuse("it lists " + std::to_string(abilities.max_top_k) + " ids of a position, " +
               std::to_string(asked_ids(spec, vocab_rows)) +
               " are needed; lower distill.loss_top_k, or raise the engine's own limit (vLLM: "
               "--max-logprobs)");
  }
}

std::vector<ScoreRequest> questions_of(const roles::ForwardRequest& request, int64_t vocab_rows) {
  const at::Tensor ids = request.input_ids.contiguous(), ends = request.cu_seqlens.contiguous(),
                   positions = request.positions.contiguous();
  const auto* id = ids.const_data_ptr<int32_t>();
  const auto* end = ends.const_data_ptr<int32_t>();
  const std::span wanted(positions.const_data_ptr<int32_t>(),
                         static_cast<size_t>(positions.numel()));

  std::vector<ScoreRequest> questions;
  // Positions ascend, so one pass deals them to their sequences. The request counts them from the
  // start of all tokens, a question from the start of its sequence. A sequence without a wanted
  // position is not asked about.
  auto next = wanted.begin();
  for (int64_t s = 0; s + 1 < ends.numel(); ++s) {
    ScoreRequest one;
    for (; next != wanted.end() && *next < end[s + 1]; ++next)
      one.positions.push_back(*next - end[s]);
    if (one.positions.empty()) continue;
    one.token_ids.assign(id + end[s], id + end[s + 1]);
    if (request.spec.kind == PayloadKind::kTopK) one.top_k = asked_ids(request.spec, vocab_rows);
    questions.push_back(std::move(one));
  }
  return questions;
}

at::Tensor named_ids(const PayloadSpec& spec, const at::Tensor& ids, int64_t vocab_rows) {
  const int64_t masked = masked_ids(spec, vocab_rows);
  if (masked == 0) return ids;
  // The ids that the student lacks are named as well: their mass must be known before it can be
  // divided out.
  const at::Tensor lacking = at::arange(vocab_rows - masked, vocab_rows, ids.options());
  return at::cat({ids, lacking.expand({ids.size(0), masked})}, 1);
}

Payload payload_of_named(const PayloadSpec& spec, const std::vector<at::Tensor>& answers,
                         int64_t vocab_rows) {
  const int64_t known = known_ids(spec, vocab_rows), masked = masked_ids(spec, vocab_rows);
  const int64_t k = std::min(spec.top_k, known);
  const at::Tensor all = answers.empty() ? at::empty({0, k + masked}, at::kDouble)
                                         : at::cat(answers).to(at::kDouble).contiguous();
  const int64_t rows = all.size(0);
  RETORT_CHECK(all.size(1) == k + masked) << "numbers of other ids than were named";

  Payload payload;
  payload.log_tail = at::empty({rows}, at::kFloat);
  at::Tensor log_probs = at::empty({rows, k}, at::kFloat);
  // Each row has the numbers of the student's k ids first, then those of the ids that it lacks.
  const auto* value = all.const_data_ptr<double>();
  auto* log_prob = log_probs.mutable_data_ptr<float>();
  auto* tail = payload.log_tail.mutable_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    KnownRow row;
    row.log_probs.assign(value, value + k);
    double sum = 0;
    for (int64_t i = 0; i < k + masked; ++i) {
      const double probability = std::exp(value[i]);
      sum += probability;
      if (i >= k) row.masked += probability;
    }
    check_sum(sum);
    value += k + masked;

    keep(row, k == known);
    for (const double one : row.log_probs)
      *log_prob++ = static_cast<float>(one);
    *tail++ = static_cast<float>(row.log_tail);
    payload.masked_mass_sum += row.masked;
  }
  payload.logps = spec.bfloat16 ? log_probs.to(at::kBFloat16) : log_probs;
  return payload;
}

Payload payload_of(const PayloadSpec& spec, const std::vector<Scored>& answers,
                   int64_t vocab_rows) {
  if (spec.kind == PayloadKind::kTopK) return top_k_payload(spec, answers, vocab_rows);
  std::vector<float> given;
  for (const Scored& answer : answers)
    given.insert(given.end(), answer.given.begin(), answer.given.end());
  Payload payload;
  payload.logps = at::tensor(given, at::kFloat);
  return payload;
}

Payload payload_of_hidden(const std::vector<at::Tensor>& answers) {
  Payload payload;
  payload.hidden = at::cat(answers);
  return payload;
}

}  // namespace retort::engines
