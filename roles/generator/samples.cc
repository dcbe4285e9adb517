#include "roles/generator/samples.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace retort::roles {
namespace {

at::Tensor vector_of(int64_t size, at::ScalarType type) { return at::empty({size}, type); }

bool is_vector(const at::Tensor& tensor, at::ScalarType type, int64_t size) {
  return tensor.defined() && tensor.is_cpu() && tensor.dim() == 1 && tensor.scalar_type() == type &&
         tensor.numel() == size && tensor.is_contiguous();
}

template <class T>
std::span<const T> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

void check_label(const Samples& samples, const ExpectedSamples& expected,
                 const std::string& generator) {
  if (samples.request_id == expected.request_id && samples.generator == generator &&
      samples.weight_version == expected.weight_version &&
      samples.sequence_hash == expected.sequence_hash)
    return;
  throw Error(ErrorCode::kMismatch, "samples belong to something else; they were not used")
      .with("request", samples.request_id)
      .with("expected_request", expected.request_id)
      .with("weight_version", samples.weight_version)
      .with("expected_version", expected.weight_version);
}

[[noreturn]] void corrupt(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "samples: " + what);
}

// Log-probabilities are there for all tokens [T] or for none.
bool is_known_or_none(const at::Tensor& log_probs, int64_t tokens) {
  return is_vector(log_probs, at::kFloat, tokens) || is_vector(log_probs, at::kFloat, 0);
}

// False for an episode that ended before the model said anything.
bool has_drawn(const models::Completion& completion) {
  return completion.spans.empty() || drawn_tokens(completion) > 0;
}

// Joins the numbers of all tokens; there are none if the generator does not know them.
at::Tensor join(std::span<const IndexedCompletion> completions,
                std::vector<float> models::Completion::*numbers, int64_t tokens) {
  int64_t known = 0, drawn = 0;
  for (const IndexedCompletion& one : completions) {
    if (!has_drawn(one.completion)) continue;
    known += static_cast<int64_t>((one.completion.*numbers).size());
    drawn += static_cast<int64_t>(one.completion.token_ids.size());
  }
  RETORT_CHECK(known == drawn || known == 0) << "log-probabilities of some tokens alone";
  if (known < drawn) return vector_of(0, at::kFloat);

  // What the model did not draw has 0, whether or not the generator knows the others.
  at::Tensor joined = vector_of(tokens, at::kFloat);
  auto* to = joined.mutable_data_ptr<float>();
  for (const IndexedCompletion& one : completions) {
    const std::vector<float>& from = one.completion.*numbers;
    to = has_drawn(one.completion) ? std::copy(from.begin(), from.end(), to)
                                   : std::fill_n(to, one.completion.token_ids.size(), 0.0F);
  }
  return joined;
}

// The spans of all completions lie one after the other, as their tokens do. Most requests have
// none, and then nothing is sent.
void pack_spans(std::span<const IndexedCompletion> completions, Samples& samples) {
  int64_t total = 0;
  for (const IndexedCompletion& one : completions)
    total += static_cast<int64_t>(one.completion.spans.size());
  const auto count = static_cast<int64_t>(total > 0 ? completions.size() : 0);
  samples.span_counts = vector_of(count, at::kInt);
  samples.span_lengths = vector_of(total, at::kInt);
  samples.span_sources = vector_of(total, at::kByte);
  samples.span_versions = vector_of(total, at::kLong);
  if (total == 0) return;

  auto* number = samples.span_counts.mutable_data_ptr<int32_t>();
  auto* length = samples.span_lengths.mutable_data_ptr<int32_t>();
  auto* source = samples.span_sources.mutable_data_ptr<uint8_t>();
  auto* version = samples.span_versions.mutable_data_ptr<int64_t>();
  for (const IndexedCompletion& one : completions) {
    *number++ = static_cast<int32_t>(one.completion.spans.size());
    for (const models::Span& span : one.completion.spans) {
      *length++ = static_cast<int32_t>(span.tokens);
      *source++ = static_cast<uint8_t>(span.source);
      *version++ = static_cast<int64_t>(span.weight_version);
    }
  }
}

void unpack_spans(const Samples& samples, std::vector<IndexedCompletion>& completions) {
  if (samples.span_counts.numel() == 0) return;
  const auto counts = values_of<int32_t>(samples.span_counts);
  const auto lengths = values_of<int32_t>(samples.span_lengths);
  const auto sources = values_of<uint8_t>(samples.span_sources);
  const auto versions = values_of<int64_t>(samples.span_versions);
  size_t next = 0;
  for (size_t i = 0; i < completions.size(); ++i)
    for (int32_t of_this = 0; of_this < counts[i]; ++of_this, ++next)
      completions[i].completion.spans.push_back(
          {.source = static_cast<models::SpanSource>(sources[next]),
           .weight_version = static_cast<uint64_t>(versions[next]),
           .tokens = lengths[next]});
}

// What episodes came to: one text for each completion, or none at all.
void pack_episodes(std::span<const IndexedCompletion> completions, Samples& samples) {
  const bool any = std::any_of(completions.begin(), completions.end(),
                               [](const auto& one) { return !one.completion.episode.empty(); });
  if (!any) return;
  for (const IndexedCompletion& one : completions)
    samples.episodes.push_back(one.completion.episode);
}

// Each completion of the request may come at most once.
void check_indices(std::span<const int32_t> indices, int64_t completions) {
  std::vector<bool> seen(static_cast<size_t>(completions));
  for (const int32_t index : indices) {
    if (index < 0 || index >= completions || seen[static_cast<size_t>(index)])
      corrupt("expected different completions of " + std::to_string(completions) +
              ", among them is " + std::to_string(index));
    seen[static_cast<size_t>(index)] = true;
  }
}

// An episode begins with its prompt, then the model speaks; nobody answers before it has.
void check_speaker(models::SpanSource source, int32_t place, models::SpanSource before) {
  using models::SpanSource;
  if (place == 0 && source != SpanSource::kPrompt)
    corrupt("an episode does not begin with a prompt");
  if (place == 1 && source != SpanSource::kModel)
    corrupt("the model does not speak first in an episode");
  if (place > 1 && source == SpanSource::kEnvironment && before == source)
    corrupt("an environment answers twice, though the model has said nothing between");
}

// A span of a completion, which is its `place`-th.
void check_span(const models::Span& span, int32_t place, const ExpectedSamples& expected) {
  using models::SpanSource;
  if (span.tokens < 1) corrupt("a span without tokens");
  if (span.source > SpanSource::kPrompt) corrupt("a span's source is unknown");
  if (span.source == SpanSource::kPrompt && (place > 0 || !expected.episodes))
    corrupt("a prompt stands where none can be");
  if (span.source != SpanSource::kModel && span.weight_version != 0)
    corrupt("tokens that no weights drew have a version");
  if (span.weight_version > expected.weight_version)
    throw Error(ErrorCode::kMismatch,
                "samples: a span was drawn with later weights than its answer")
        .with("request", expected.request_id)
        .with("span_version", span.weight_version)
        .with("weight_version", expected.weight_version);
}

// `ends`: where each completion's tokens end, behind a first 0.
void check_spans(const Samples& samples, std::span<const int32_t> ends,
                 const ExpectedSamples& expected) {
  const auto count = static_cast<int64_t>(ends.size()) - 1;
  const int64_t spans = samples.span_lengths.defined() ? samples.span_lengths.numel() : 0;
  if (!is_vector(samples.span_counts, at::kInt, spans > 0 ? count : 0) ||
      !is_vector(samples.span_lengths, at::kInt, spans) ||
      !is_vector(samples.span_sources, at::kByte, spans) ||
      !is_vector(samples.span_versions, at::kLong, spans))
    corrupt("spans do not fit together");
  if (spans == 0 && !(expected.episodes && ends.back() > 0)) return;
  if (spans == 0) corrupt("episodes do not say whose their tokens are");

  const auto lengths = values_of<int32_t>(samples.span_lengths);
  const auto sources = values_of<uint8_t>(samples.span_sources);
  const auto versions = values_of<int64_t>(samples.span_versions);
  int64_t next = 0;
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    const int32_t of_this = values_of<int32_t>(samples.span_counts)[i];
    if (of_this < 0 || of_this > spans - next) corrupt("other spans than their number says");

    // The spans of a completion have all its tokens; a completion without spans is the model's.
    int64_t tokens = 0;
    auto before = models::SpanSource::kPrompt;
    for (int32_t place = 0; place < of_this; ++place, ++next) {
      const auto at = static_cast<size_t>(next);
      const auto source = static_cast<models::SpanSource>(sources[at]);
      check_span({.source = source,
                  .weight_version = static_cast<uint64_t>(versions[at]),
                  .tokens = lengths[at]},
                 place, expected);
      if (expected.episodes) check_speaker(source, place, before);
      before = source;
      tokens += lengths[at];
    }
    if ((of_this > 0 || expected.episodes) && tokens != ends[i + 1] - ends[i])
      corrupt("the spans of a completion do not add up to its tokens");
  }
  if (next != spans) corrupt("other spans than their number says");
}

void check_records(const Samples& samples, const ExpectedSamples& expected) {
  const size_t count = expected.episodes ? static_cast<size_t>(samples.indices.numel()) : 0;
  if (samples.episodes.size() != count)
    corrupt(std::to_string(samples.episodes.size()) + " episodes for " + std::to_string(count) +
            " completions that are such");
  if (std::any_of(samples.episodes.begin(), samples.episodes.end(),
                  [](const std::string& text) { return text.empty(); }))
    corrupt("an episode does not say what it came to");
}

}  // namespace

int64_t drawn_tokens(const models::Completion& completion) {
  if (completion.spans.empty()) return static_cast<int64_t>(completion.token_ids.size());
  int64_t tokens = 0;
  for (const models::Span& span : completion.spans)
    if (span.source == models::SpanSource::kModel) tokens += span.tokens;
  return tokens;
}

Samples pack_completions(std::span<const IndexedCompletion> completions) {
  const auto count = static_cast<int64_t>(completions.size());
  int64_t tokens = 0;
  for (const IndexedCompletion& one : completions)
    tokens += static_cast<int64_t>(one.completion.token_ids.size());

  Samples samples;
  samples.indices = vector_of(count, at::kInt);
  samples.token_ids = vector_of(tokens, at::kInt);
  samples.cu_seqlens = vector_of(count + 1, at::kInt);
  samples.logps = join(completions, &models::Completion::logps, tokens);
  samples.sampling_logps = join(completions, &models::Completion::sampling_logps, tokens);
  samples.finish_reasons = vector_of(count, at::kByte);
  pack_spans(completions, samples);
  pack_episodes(completions, samples);

  // The completions lie one after the other; cu_seqlens says where each of them ends.
  auto* index = samples.indices.mutable_data_ptr<int32_t>();
  auto* id = samples.token_ids.mutable_data_ptr<int32_t>();
  auto* end = samples.cu_seqlens.mutable_data_ptr<int32_t>();
  auto* reason = samples.finish_reasons.mutable_data_ptr<uint8_t>();
  int32_t drawn = 0;
  *end++ = 0;
  for (const auto& [place, completion] : completions) {
    *index++ = static_cast<int32_t>(place);
    id = std::copy(completion.token_ids.begin(), completion.token_ids.end(), id);
    *reason++ = static_cast<uint8_t>(completion.finish_reason);
    drawn += static_cast<int32_t>(completion.token_ids.size());
    *end++ = drawn;
  }
  return samples;
}

std::vector<IndexedCompletion> unpack_completions(const Samples& samples) {
  const auto indices = values_of<int32_t>(samples.indices);
  const auto ends = values_of<int32_t>(samples.cu_seqlens);
  const auto reasons = values_of<uint8_t>(samples.finish_reasons);

  // check_samples() has seen that the offsets lie inside the tensors.
  std::vector<IndexedCompletion> completions(indices.size());
  for (size_t i = 0; i < completions.size(); ++i) {
    const auto copy = [&](const auto* from, auto& to) {
      to.assign(from + ends[i], from + ends[i + 1]);
    };
    const auto copy_known = [&](const at::Tensor& from, auto& to) {
      if (from.numel() > 0) copy(from.const_data_ptr<float>(), to);
    };
    completions[i].index = indices[i];
    models::Completion& completion = completions[i].completion;
    copy(samples.token_ids.const_data_ptr<int32_t>(), completion.token_ids);
    copy_known(samples.logps, completion.logps);
    copy_known(samples.sampling_logps, completion.sampling_logps);
    completion.finish_reason = static_cast<models::FinishReason>(reasons[i]);
    if (!samples.episodes.empty()) completion.episode = samples.episodes[i];
  }
  unpack_spans(samples, completions);
  return completions;
}

ExpectedSamples expected_samples(const GenerateRequest& request, int64_t vocab_rows,
                                 int64_t episode_tokens) {
  const bool episodes = !request.episodes.empty();
  return {.request_id = request.request_id,
          .weight_version = request.weight_version,
          .sequence_hash =
              sequence_hash(request.prompt_ids, request.cu_seqlens, at::empty({0}, at::kInt)),
          .completions = request.sample_ids.numel(),
          .max_new_tokens = episodes ? episode_tokens : request.draw.max_new_tokens,
          .vocab_rows = vocab_rows,
          .episodes = episodes};
}

void check_samples(const Samples& samples, const ExpectedSamples& expected,
                   const std::string& generator) {
  check_label(samples, expected, generator);

  // Every tensor must have the shape that the others promise.
  const int64_t count = samples.indices.defined() ? samples.indices.numel() : 0;
  if (!is_vector(samples.indices, at::kInt, count) ||
      !is_vector(samples.cu_seqlens, at::kInt, count + 1) ||
      !is_vector(samples.finish_reasons, at::kByte, count))
    corrupt("indices, offsets and finish reasons do not fit together");
  check_indices(values_of<int32_t>(samples.indices), expected.completions);
  const auto ends = values_of<int32_t>(samples.cu_seqlens);
  const int64_t tokens = ends.back();
  if (ends.front() != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
      !is_vector(samples.token_ids, at::kInt, tokens) || !is_known_or_none(samples.logps, tokens) ||
      !is_known_or_none(samples.sampling_logps, tokens))
    corrupt("offsets, ids and log-probabilities do not fit together");

  // The values come from another process, so each must be one that a generator may give.
  for (size_t i = 0; i + 1 < ends.size(); ++i)
    if (ends[i + 1] - ends[i] > expected.max_new_tokens)
      corrupt(expected.episodes ? "an episode is longer than the model has positions"
                                : "a completion is longer than max_new_tokens");
  for (const int32_t id : values_of<int32_t>(samples.token_ids))
    if (id < 0 || id >= expected.vocab_rows) corrupt("an id lies outside the vocabulary");
  for (const at::Tensor* values : {&samples.logps, &samples.sampling_logps})
    for (const float logp : values_of<float>(*values))
      if (!std::isfinite(logp)) corrupt("a log-probability is not finite");
  for (const uint8_t reason : values_of<uint8_t>(samples.finish_reasons))
    if (reason > static_cast<uint8_t>(models::FinishReason::kCancelled))
      corrupt("a finish reason is unknown");
  check_spans(samples, ends, expected);
  check_records(samples, expected);
}

}  // namespace retort::roles
