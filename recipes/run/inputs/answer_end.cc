#include "recipes/run/inputs/answer_end.h"

#include <algorithm>

#include "base/error.h"
#include "models/config/config.h"
#include "models/text/end_tokens.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

constexpr std::string_view kAnswer = "answer";

// "'<|im_end|>' (token 7)"
std::string named_token(const models::Tokenizer& tokenizer, int64_t id) {
  return "'" + tokenizer.id_to_token(static_cast<int32_t>(id)) + "' (token " + std::to_string(id) +
         ")";
}

std::string named_tokens(const models::Tokenizer& tokenizer, std::span<const int64_t> ids) {
  std::string text;
  for (const int64_t id : ids)
    text += (text.empty() ? "" : ", ") + named_token(tokenizer, id);
  return text.empty() ? "no token" : text;
}

// eos_token_id of generation_config.json with one more: "[3, 7]".
std::string longer_list(std::span<const int64_t> ids, int32_t more) {
  std::string text = "[";
  for (const int64_t id : ids)
    text += std::to_string(id) + ", ";
  return text + std::to_string(more) + "]";
}

// The first line of a text that holds more than white space, without white space around it.
std::string first_words(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  return line.substr(0, line.find_last_not_of(kSpace) + 1);
}

}  // namespace

AnswerEnd answer_end(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer) {
  // The template itself shows how it ends an answer: by what it renders behind the content of one.
  const std::string conversation = R"([{"role":"user","content":"question"},)"
                                   R"({"role":"assistant","content":")" +
                                   std::string(kAnswer) + R"("}])";
  const std::string text = chat.render(conversation, false).text;
  const size_t content = text.rfind(kAnswer);
  if (content == std::string::npos) return {};
  const size_t end = content + kAnswer.size();

  const models::Tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, false);
  AnswerEnd behind{.text = text.substr(end), .ids = {}};
  for (size_t i = 0; i < encoding.ids.size(); ++i)
    if (encoding.offsets[i].first >= end) behind.ids.push_back(encoding.ids[i]);
  return behind;
}

bool is_end_sign(const models::Tokenizer& tokenizer, int32_t id) {
  if (id == tokenizer.eos_id()) return true;
  const std::span<const int32_t> one(&id, 1);
  // A sign is text only where special tokens are shown. One that is no text there either may be a
  // space alone, which is no sign.
  return tokenizer.decode(one, /*skip_special_tokens=*/true).empty() &&
         !tokenizer.decode(one, /*skip_special_tokens=*/false).empty();
}

std::optional<std::string> unheard_end(const models::ChatTemplate& chat,
                                       const models::Tokenizer& tokenizer,
                                       std::span<const int64_t> end_ids,
                                       std::span<const std::string> stop,
                                       const std::string& folder) {
  AnswerEnd end;
  try {
    end = answer_end(chat, tokenizer);
  } catch (const Error&) {
    return std::nullopt;  // rows say better what this template refuses
  }

  // A completion ends at such a sign, whatever stands before or behind it.
  const auto is_heard = [&](int32_t id) {
    return std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end();
  };
  if (std::any_of(end.ids.begin(), end.ids.end(), is_heard)) return std::nullopt;
  const auto stops = [&](const std::string& text) {
    return end.text.find(text) != std::string::npos;
  };
  if (std::any_of(stop.begin(), stop.end(), stops)) return std::nullopt;
  const std::string words = first_words(end.text);
  if (words.empty()) return std::nullopt;

  const std::string others = ", and a completion of " + folder + " ends at " +
                             named_tokens(tokenizer, end_ids) +
                             ": a model that learns this template goes on behind its answers; ";
  const auto sign = std::find_if(end.ids.begin(), end.ids.end(),
                                 [&](int32_t id) { return is_end_sign(tokenizer, id); });
  if (sign == end.ids.end())
    return "the template ends an answer with the text '" + words +
           "', which is no token of its own" + others +
           "add it to the model as one (retort vocab add) and to eos_token_id in its "
           "generation_config.json, or use a template that ends answers otherwise";
  return "the template ends an answer with " + named_token(tokenizer, *sign) + others +
         "write \"eos_token_id\": " + longer_list(end_ids, *sign) +
         " into its generation_config.json, or the token into generation.stop of a recipe that "
         "draws";
}

std::optional<std::string> unheard_end(const Recipe& recipe, const models::ChatTemplate& chat,
                                       const models::Tokenizer& tokenizer, bool has_messages) {
  const bool is_named = recipe.data.chat_template.has_value();
  const bool is_used = is_named || (has_messages && chat.exists());
  if (!is_used || recipe_type(recipe).score_labels(recipe) > 0) return std::nullopt;
  const std::string& folder = recipe.student().model;
  const std::vector<int64_t> ends =
      models::end_token_ids(models::read_model_config(folder), tokenizer);
  const std::vector<std::string> stop =
      recipe.generation ? recipe.generation->stop : std::vector<std::string>();
  const auto warning = unheard_end(chat, tokenizer, ends, stop, folder);
  if (!warning) return std::nullopt;
  return (is_named ? "data.chat_template: " : "the student's chat template: ") + *warning;
}

}  // namespace retort::recipes
