#include "engines/sglang/generate_question.h"

#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "engines/contract/draw_support.h"
#include "engines/contract/options.h"
#include "engines/contract/scored_tokens.h"
#include "engines/wire/json_object.h"
#include "engines/wire/logit_bias.h"

namespace retort::engines::sglang {
namespace {

using Json = nlohmann::json;

// SGLang draws greedily below it.
constexpr double kLeastTemperature = 1e-6;

// Bytes of an answer. Numbers are printed as doubles, ids have ten digits, and a token's text is
// JSON with six bytes for each byte that must be escaped.
constexpr uint64_t kEnvelopeBytes = 64 << 10;
constexpr uint64_t kEntryBytes = 64;  // [LOGPROB,ID,null],
constexpr uint64_t kIdBytes = 12;
constexpr uint64_t kTokenTextBytes = 768;

// The text in a question that is not ours.
constexpr const char* kUsersText = "stop";

[[noreturn]] void refuse_question(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, why);
}

// Draws from the whole distribution. Each field is written out, so that nothing follows from the
// server's own preferences. Stop strings are looked for in text without special tokens, as our own
// engine does; those that are special tokens come as stop_token_ids.
Json neutral_sampling() {
  return Json{// how many, and how they are found
              {"max_new_tokens", 0},
              {"min_new_tokens", 0},
              {"n", 1},
              {"beam_width", nullptr},

              // which distribution is drawn from
              {"temperature", 1.0},
              {"top_p", 1.0},
              {"top_k", -1},
              {"min_p", 0.0},
              {"repetition_penalty", 1.0},
              {"presence_penalty", 0.0},
              {"frequency_penalty", 0.0},
              {"logit_bias", nullptr},
              {"sampling_seed", nullptr},

              // where a completion ends
              {"ignore_eos", true},
              {"stop", Json::array()},
              {"stop_regex", Json::array()},
              {"stop_token_ids", Json::array()},
              {"no_stop_trim", true},
              {"skip_special_tokens", true},
              {"spaces_between_special_tokens", false},

              // no form is asked for, and nothing of the server's own
              {"json_schema", nullptr},
              {"regex", nullptr},
              {"ebnf", nullptr},
              {"structural_tag", nullptr},
              {"stream_interval", nullptr},
              {"custom_params", nullptr},
              {"watermark", {{"enabled", false}}}};
}

Json plain_question(const std::vector<int32_t>& ids, size_t count, const RequestName& name) {
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(count);
  return Json{{"rid", name.rid},
              {"input_ids", std::vector<int32_t>(ids.begin(), end)},
              {"sampling_params", neutral_sampling()},
              {"stream", false},
              {"return_logprob", true},
              {"logprob_start_len", -1},
              {"top_logprobs_num", 0},
              {"token_ids_logprob", nullptr},
              {"return_text_in_logprobs", false},
              {"return_flat_raw_top_logprobs", false},
              {"return_flat_raw_output_top_logprobs", false},
              {"return_flat_raw_top_logprobs_b64", false},
              {"return_hidden_states", false},
              {"lora_path", nullptr},
              {"cache_salt", name.cache_salt.empty() ? Json() : Json(name.cache_salt)}};
}

void check_ids(const std::string& field, const std::vector<int32_t>& ids, int64_t vocab_rows) {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_rows)
      throw Error(ErrorCode::kMismatch,
                  field + ": the server's model does not know the token id " + std::to_string(id) +
                      ", it has " + std::to_string(vocab_rows) + "; it has another tokenizer");
}

void check_sampling(const models::SamplingOptions& sampling) {
  sampling.validate();
  if (sampling.temperature > 0 && sampling.temperature < kLeastTemperature)
    refuse_question("temperature: SGLang draws greedily below 1e-6; use 0, or more");
  if (sampling.repetition_penalty != 1)
    refuse_question(
        "repetition_penalty: SGLang does not count the tokens of the prompt, and we do; use 1");
  if (sampling.top_k > 0 && sampling.top_p < 1)
    refuse_question("top_k: SGLang applies it beside top_p, and we before it; use one of them");
}

}  // namespace

Question draw_question(const DrawRequest& request, const RequestName& name, int64_t vocab_rows) {
  const models::SamplingOptions& sampling = request.how.sampling;
  check_sampling(sampling);
  check_draw_support(EngineKind::kSglang, request.how);
  if (request.prompt.empty()) refuse_question("prompt: is empty; SGLang needs a token");
  if (request.how.max_new_tokens < 1) refuse_question("max_new_tokens: must be at least 1");
  check_ids("prompt", request.prompt, vocab_rows);

  Json body = plain_question(request.prompt, request.prompt.size(), name);
  Json& params = body["sampling_params"];
  params["max_new_tokens"] = request.how.max_new_tokens;
  params["temperature"] = sampling.temperature;
  params["top_p"] = sampling.top_p;
  params["top_k"] = sampling.top_k > 0 ? sampling.top_k : -1;
  params["min_p"] = sampling.min_p;
  params["presence_penalty"] = sampling.presence_penalty;
  params["frequency_penalty"] = sampling.frequency_penalty;
  params["min_new_tokens"] = request.how.min_new_tokens;
  const Json bias = padding_bias(sampling.num_ids, vocab_rows);
  if (!bias.empty()) params["logit_bias"] = bias;
  // SGLang reads the seed as a signed number, so its bits go as one.
  params["sampling_seed"] = std::bit_cast<int64_t>(request.seed);
  params["stop"] = request.how.stop;
  // With ignore_eos SGLang does not look at stop_token_ids either. Without it the model's own end
  // tokens count too, so it is set only where the request names none.
  const std::vector<int64_t> ends = request.how.end_ids();
  params["stop_token_ids"] = ends;
  params["ignore_eos"] = ends.empty();

  const auto num_new = static_cast<uint64_t>(request.how.max_new_tokens);
  return {.body = body_text(body, kUsersText),
          .body_bytes = kEnvelopeBytes + num_new * (kIdBytes + kEntryBytes + kTokenTextBytes)};
}

Question score_question(const ScoreRequest& request, const RequestName& name, int64_t vocab_rows) {
  check_score(request);
  if (request.top_k > vocab_rows)
    refuse_question("top_k: is " + std::to_string(request.top_k) + ", and the server's model has " +
                    std::to_string(vocab_rows) + " ids");
  check_ids("token_ids", request.token_ids, vocab_rows);

  const auto count = static_cast<uint64_t>(num_scored_tokens(request));
  Json body = plain_question(request.token_ids, count, name);
  body["logprob_start_len"] = request.positions.front();
  const bool listed = request.top_k > 0;
  body["top_logprobs_num"] = request.top_k;
  body["return_flat_raw_top_logprobs"] = listed;
  body["return_flat_raw_output_top_logprobs"] = listed;
  body["return_flat_raw_top_logprobs_b64"] = listed;

  // The limit is that of entries listed one by one, which the server may choose over the flat form.
  const uint64_t rows = count - static_cast<uint64_t>(request.positions.front()) + 1;
  const uint64_t entries = 1 + static_cast<uint64_t>(request.top_k);
  return {.body = body_text(body, kUsersText),
          .body_bytes = kEnvelopeBytes + rows * entries * kEntryBytes};
}

std::string vocabulary_question(const std::string& rid) {
  Json body = plain_question({0}, 1, {.rid = rid, .cache_salt = {}});
  const auto too_large = std::to_string(std::numeric_limits<int32_t>::max());
  body["sampling_params"]["logit_bias"] = {{too_large, 0.0}};
  return body_text(body, kUsersText);
}

}  // namespace retort::engines::sglang
