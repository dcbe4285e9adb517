#include "engines/vllm/completion_question.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engines/contract/draw_support.h"
#include "engines/contract/options.h"
#include "engines/contract/scored_tokens.h"
#include "engines/wire/json_object.h"
#include "engines/wire/logit_bias.h"

namespace retort::engines::vllm {
namespace {

using Json = nlohmann::json;

// vLLM raises smaller ones to it, with a warning in its log.
constexpr double kLeastTemperature = 0.01;

// Bytes of an answer. Numbers are printed as doubles, ids have ten digits, and a token's text is
// JSON with six bytes for each byte that must be escaped.
constexpr uint64_t kEnvelopeBytes = 64 << 10;
constexpr uint64_t kIdBytes = 12;
constexpr uint64_t kNumberBytes = 26;
constexpr uint64_t kTokenTextBytes = 768;
// "ID":{"logprob":...,"rank":...,"decoded_token":"..."},
constexpr uint64_t kEntryBytes = 64 + kIdBytes + kNumberBytes + kTokenTextBytes;
// Four bytes of a number, in base64.
constexpr uint64_t kNamedBytes = 6;
// In token_ids, tokens, token_logprobs, top_logprobs, text_offset and text.
constexpr uint64_t kDrawnBytes = 6 * kIdBytes + 2 * kNumberBytes + 64 + kTokenTextBytes;

// The text in a question that is not ours.
constexpr const char* kUsersText = "stop";

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

// The fields of every question: one completion of these ids, with nothing added to them. Each field
// is written out, even where it has vLLM's default, because a server may have defaults of its own.
// Stop strings are looked for in text without special tokens, as our own engine does; those that
// are special tokens come as stop_token_ids.
Json neutral(const std::vector<int32_t>& ids, size_t count, const std::string& model) {
  return Json{{"model", model},
              {"prompt", std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<long>(count))},
              {"n", 1},
              {"echo", false},
              {"stream", false},
              {"add_special_tokens", false},
              {"return_token_ids", true},
              {"max_tokens", 1},
              {"min_tokens", 0},
              {"temperature", 0.0},
              {"top_p", 1.0},
              {"top_k", 0},
              {"min_p", 0.0},
              {"repetition_penalty", 1.0},
              {"presence_penalty", 0.0},
              {"frequency_penalty", 0.0},
              {"watermarking", false},
              {"ignore_eos", true},
              {"stop", Json::array()},
              {"stop_token_ids", Json::array()},
              {"skip_special_tokens", true},
              {"spaces_between_special_tokens", false},
              {"include_stop_str_in_output", true}};
}

void check_sampling(const models::SamplingOptions& sampling, uint64_t seed) {
  if (sampling.temperature > 0 && sampling.temperature < kLeastTemperature)
    refuse("temperature: vLLM draws at 0.01 what is asked at " +
           std::to_string(sampling.temperature) + "; use 0, or at least 0.01");
  if (sampling.min_p > 0 && sampling.top_p < 1)
    refuse("min_p: vLLM applies it before top_p, and we after it; use one of them");
  if (seed == UINT64_MAX) refuse("seed: vLLM takes 2^64 - 1 for none; use another");
}

}  // namespace

Question draw_question(const DrawRequest& request, const std::string& model,
                       const std::string& request_id, int64_t vocab_rows) {
  const models::SamplingOptions& sampling = request.how.sampling;
  sampling.validate();
  check_draw_support(EngineKind::kVllm, request.how);
  check_sampling(sampling, request.seed);
  if (request.prompt.empty()) refuse("prompt: is empty; vLLM needs a token");
  if (request.how.max_new_tokens < 1) refuse("max_new_tokens: must be at least 1");

  // Everything that a draw sets is set here, over what is neutral. vLLM reads the seed as a signed
  // number, so its bits go as one.
  Json body = neutral(request.prompt, request.prompt.size(), model);
  body["max_tokens"] = request.how.max_new_tokens;
  body["temperature"] = sampling.temperature;
  body["top_p"] = sampling.top_p;
  body["top_k"] = sampling.top_k;
  body["min_p"] = sampling.min_p;
  body["repetition_penalty"] = sampling.repetition_penalty;
  body["presence_penalty"] = sampling.presence_penalty;
  body["frequency_penalty"] = sampling.frequency_penalty;
  body["min_tokens"] = request.how.min_new_tokens;
  body["seed"] = std::bit_cast<int64_t>(request.seed);
  body["stop"] = request.how.stop;
  body["stop_token_ids"] = request.how.end_ids();
  body["logprobs"] = 0;
  body["return_tokens_as_token_ids"] = true;
  body["request_id"] = request_id;
  const Json bias = padding_bias(sampling.num_ids, vocab_rows);
  if (!bias.empty()) body["logit_bias"] = bias;

  const auto num_new = static_cast<uint64_t>(request.how.max_new_tokens);
  return {.body = body_text(body, kUsersText),
          .body_bytes = kEnvelopeBytes + request.prompt.size() * kIdBytes + num_new * kDrawnBytes};
}

Question score_question(const ScoreRequest& request, const std::string& model,
                        const std::string& request_id) {
  check_score(request);
  const auto count = static_cast<uint64_t>(num_scored_tokens(request));
  Json body = neutral(request.token_ids, count, model);
  body["prompt_logprobs"] = request.top_k;
  body["request_id"] = request_id;

  const auto num_entries = static_cast<uint64_t>(request.top_k) + 1;
  return {.body = body_text(body, kUsersText),
          .body_bytes = kEnvelopeBytes + count * (kIdBytes + num_entries * kEntryBytes)};
}

Question named_question(const ScoreRequest& request, const at::Tensor& ids,
                        const std::string& model, const std::string& request_id) {
  check_score(request);
  const auto num_wanted = static_cast<int64_t>(request.positions.size());
  if (!ids.defined() || ids.dim() != 2 || ids.size(0) != num_wanted || ids.size(1) < 1 ||
      ids.scalar_type() != at::kInt || !ids.is_cpu())
    refuse("ids: are not int32, some of each wanted position");
  const auto count = static_cast<size_t>(num_scored_tokens(request));
  const auto width = static_cast<size_t>(ids.size(1));
  const at::Tensor rows = ids.contiguous();
  const auto* named = rows.const_data_ptr<int32_t>();

  // The server takes a row of ids for each position from the first wanted one to the last. A
  // position in between that nobody wants repeats the row before it, and NamedRows leaves its
  // numbers out.
  Json all = Json::array();
  size_t next = 0;
  for (int32_t position = request.positions.front(); position <= request.positions.back();
       ++position) {
    if (position == request.positions[next]) ++next;
    const int32_t* const row = named + (next - 1) * width;
    all.push_back(std::vector<int32_t>(row, row + width));
  }

  const auto begin = request.token_ids.begin();
  const uint64_t num_numbers = all.size() * width;
  const Json body{{"model", model},
                  {"token_ids", std::vector<int32_t>(begin, begin + static_cast<long>(count))},
                  {"stream", false},
                  {"request_id", request_id},
                  {"sampling_params",
                   {{"max_tokens", 1},
                    {"temperature", 0.0},
                    {"prompt_logprob_start", request.positions.front()},
                    {"prompt_logprob_token_ids", std::move(all)}}}};
  return {.body = body_text(body, kUsersText),
          .body_bytes = kEnvelopeBytes + count * kIdBytes + num_numbers * kNamedBytes};
}

std::string limit_question(const std::string& model, int64_t count) {
  Json body = neutral({0}, 1, model);
  body["prompt_logprobs"] = count;
  return body_text(body, kUsersText);
}

}  // namespace retort::engines::vllm
