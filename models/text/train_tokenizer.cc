#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "models/text/detail/rust_call.h"
#include "models/text/tokenizer.h"

namespace retort::models {
namespace {

constexpr int64_t kByteAlphabet = 256;
constexpr const char* kTurnBegin = "<|im_start|>";
constexpr const char* kTurnEnd = "<|im_end|>";
constexpr const char* kDocumentEnd = "<|endoftext|>";

// The template is ChatML. The assistant says its content and the end of its turn. Content is a
// string or a list of parts with text.
constexpr const char* kChatTemplate = R"({%- macro content_of(message) %}
    {%- if message.content is string %}
        {{- message.content }}
    {%- elif message.content is defined %}
        {%- for part in message.content %}
            {{- part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- content_of(message) + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- content_of(message) + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

void validate(const TokenizerTrainOptions& options) {
  // Special tokens must not be empty, no token may come twice, and those that the chat template
  // needs must be there.
  const auto& specials = options.special_tokens;
  std::set<std::string> seen;
  for (const auto& token : specials) {
    if (token.empty()) throw Error(ErrorCode::kInvalidArgument, "special_tokens: a token is empty");
    if (!seen.insert(token).second) {
      throw Error(ErrorCode::kInvalidArgument, "special_tokens: a token is listed twice")
          .with("token", token);
    }
  }
  for (const char* needed : {kDocumentEnd, kTurnBegin, kTurnEnd}) {
    if (!seen.contains(needed)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "special_tokens must contain <|endoftext|>, <|im_start|> and <|im_end|>: padding "
                  "and the chat "
                  "template use them")
          .with("missing", needed);
    }
  }

  // A byte-level vocabulary begins with all bytes.
  const int64_t least = kByteAlphabet + static_cast<int64_t>(specials.size());
  if (options.vocab_size < least || options.vocab_size > (int64_t{1} << 24)) {
    throw Error(ErrorCode::kInvalidArgument,
                "vocab_size must hold the 256 bytes and the special tokens, and be at most 2^24")
        .with("vocab_size", options.vocab_size)
        .with("least", least);
  }
}

std::string added_token(const std::string& content) {
  return JsonLine()
      .add("content", std::string_view(content))
      .add("lstrip", false)
      .add("normalized", false)
      .add("rstrip", false)
      .add("single_word", false)
      .add("special", true)
      .str();
}

std::string config_json(const std::vector<std::string>& specials) {
  JsonLine decoder;  // the trainer gives special tokens the first ids, in this order
  for (size_t id = 0; id < specials.size(); ++id)
    decoder.raw(std::to_string(id), added_token(specials[id]));
  return JsonLine()
             .raw("added_tokens_decoder", decoder.str())
             .raw("bos_token", "null")
             .add("eos_token", kTurnEnd)
             .add("pad_token", kDocumentEnd)
             .add("clean_up_tokenization_spaces", false)
             // transformers' "no limit"
             .raw("model_max_length", "1000000000000000019884624838656")
             .add("tokenizer_class", "PreTrainedTokenizerFast")
             .add("chat_template", kChatTemplate)
             .str() +
         "\n";
}

}  // namespace

void train_tokenizer(const std::vector<std::string>& texts, const TokenizerTrainOptions& options,
                     const std::filesystem::path& folder) {
  validate(options);
  std::vector<RtSlice> corpus;
  std::vector<RtSlice> specials;
  corpus.reserve(texts.size());
  for (const auto& text : texts)
    corpus.push_back(detail::borrow(text));
  for (const auto& token : options.special_tokens)
    specials.push_back(detail::borrow(token));
  detail::RustString json;
  int64_t reached = 0;
  detail::call_rust("", rt_train, corpus.data(), corpus.size(), specials.data(), specials.size(),
                    static_cast<size_t>(options.vocab_size), &reached, json.out());
  if (reached < options.vocab_size) {
    RETORT_LOG(kWarning) << "tokenizer training ran out of repeated pairs vocab_size=" << reached
                         << " asked=" << options.vocab_size;
  }
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "tokenizer.json", json.view());
  write_file_atomically(folder / "tokenizer_config.json", config_json(options.special_tokens));
  write_file_atomically(
      folder / "special_tokens_map.json",
      JsonLine().add("eos_token", kTurnEnd).add("pad_token", kDocumentEnd).str() + "\n");
}

}  // namespace retort::models
