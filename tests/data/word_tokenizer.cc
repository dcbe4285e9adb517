#include "tests/data/word_tokenizer.h"

#include <fstream>

#include "base/error.h"

namespace retort::test {
namespace fs = std::filesystem;

models::Tokenizer word_tokenizer(const fs::path& folder, const TokenizerOptions& options) {
  const std::vector<std::string> specials{"<unk>",    "<s>",           "</s>",   "<|system|>",
                                          "<|user|>", "<|assistant|>", "<|end|>"};

  // The vocabulary: special tokens, unused ids, words.
  std::string added, vocab;
  for (size_t i = 0; i < specials.size(); ++i) {
    added += std::string(i ? "," : "") + "{\"id\":" + std::to_string(i) + ",\"content\":\"" +
             specials[i] +
             "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
             "\"special\":true}";
    vocab += std::string(i ? "," : "") + "\"" + specials[i] + "\":" + std::to_string(i);
  }
  for (int32_t i = kEnd + 1; i < kFirstWord; ++i)
    vocab += ",\"unused" + std::to_string(i) + "\":" + std::to_string(i);
  for (int32_t i = 0; i < kNumWords; ++i)
    vocab += ",\"w" + std::to_string(i) + "\":" + std::to_string(word(i));

  // What is put around a text.
  const std::string bos = R"({"SpecialToken":{"id":"<s>","type_id":0}})";
  const std::string eos = R"({"SpecialToken":{"id":"</s>","type_id":0}})";
  const std::string text = R"({"Sequence":{"id":"A","type_id":0}})";
  const std::string single =
      (options.adds_bos ? bos + "," : "") + text + (options.adds_eos ? "," + eos : "");
  const std::string post =
      R"({"type":"TemplateProcessing","single":[)" + single + R"(],"pair":[)" + text +
      R"(,{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{)" +
      R"("<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]},"</s>":{"id":"</s>","ids":[2],)"
      R"("tokens":["</s>"]}}})";

  std::ofstream(folder / "tokenizer.json")
      << R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" << added
      << R"(],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
      << R"({"type":"WhitespaceSplit"},{"type":"Split","pattern":{"Regex":"[a-z][0-9]+"},)"
      << R"("behavior":"Isolated","invert":false}]},"post_processor":)" << post
      << R"(,"decoder":null,"model":{"type":"WordLevel","vocab":{)" << vocab
      << R"(},"unk_token":"<unk>"}})";
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"tokenizer_class":"PreTrainedTokenizerFast","unk_token":"<unk>","bos_token":"<s>")"
      << (options.has_eos ? R"(,"eos_token":"</s>"})" : "}");
  return models::Tokenizer::load(folder);
}

models::ChatTemplate chat_template(std::string_view source) {
  return models::ChatTemplate::from_source(std::string(source), "<s>", "</s>");
}

std::string numbered_row(int64_t id, int64_t tokens) {
  RETORT_CHECK(tokens >= 5 && id < kNumWords * kNumWords);
  std::string ids = std::to_string(kBos) + "," +
                    std::to_string(word(static_cast<int32_t>(id / kNumWords))) + "," +
                    std::to_string(word(static_cast<int32_t>(id % kNumWords)));
  for (int64_t i = 4; i < tokens; ++i)
    ids += "," + std::to_string(word(static_cast<int32_t>(i % kNumWords)));
  return "{\"input_ids\":[" + ids + "," + std::to_string(kEos) + "]}\n";
}

int64_t numbered_row_id(const data::Sample& sample) {
  return int64_t{sample.input_ids.at(1) - kFirstWord} * kNumWords +
         (sample.input_ids.at(2) - kFirstWord);
}

data::Dataset numbered_dataset(const TemporaryFolder& folder,
                               const std::vector<std::vector<int64_t>>& lengths_by_source,
                               const std::vector<double>& weights,
                               const data::DataOptions& options) {
  std::vector<data::Source> sources;
  int64_t id = 0;
  for (size_t s = 0; s < lengths_by_source.size(); ++s) {
    std::string rows;
    for (const int64_t length : lengths_by_source[s])
      rows += numbered_row(id++, length);
    data::Source source{.path =
                            folder.write("source" + std::to_string(s) + ".jsonl", rows).string()};
    if (s < weights.size()) source.weight = weights[s];
    sources.push_back(source);
  }
  return data::Dataset(sources, options, word_tokenizer(folder.path()), chat_template(),
                       folder.path() / "cache");
}

}  // namespace retort::test
