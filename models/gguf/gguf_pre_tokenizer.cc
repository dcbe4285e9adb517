#include "models/gguf/gguf_pre_tokenizer.h"

#include <vector>

#include "base/error.h"

namespace retort::models {
namespace {

// Steps of a pre-tokenizer other than ByteLevel, by what they cut at; kWords stands for the
// expression of GPT-2 inside ByteLevel (use_regex), kDigits for single digits.
constexpr const char* kWords = "ByteLevel words";
constexpr const char* kDigits = "single digits";

constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// This is the same expression as models/text/rust/src/train.rs writes it.
constexpr const char* kTrained =
    R"((?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct KnownPreTokenizer {
  std::vector<std::string> steps;
  bool ignore_merges;
  const char* name;
};

// These expressions are those beside the names in llama.cpp's src/llama-vocab.cpp.
std::vector<KnownPreTokenizer> known_pre_tokenizers() {
  return {{{kTrained}, false, "qwen35"}, {{kQwen35}, false, "qwen35"},
          {{kQwen2}, false, "qwen2"},    {{kLlama3}, true, "llama-bpe"},
          {{kLlama3}, false, "dbrx"},    {{kTekken}, true, "tekken"},
          {{kWords}, false, "gpt-2"},    {{kDigits, kWords}, false, "smollm"}};
}

// Tells what a step cuts at, and adds nothing for one that cuts nothing. False for a step without
// an equal in llama.cpp.
bool describe(const ConfigJson& step, std::vector<std::string>& steps) {
  const std::string type = step.value("type", "");
  if (type == "ByteLevel") {
    if (step.value("use_regex", true)) steps.push_back(kWords);
    return !step.value("add_prefix_space", true);
  }
  if (type == "Digits") {
    steps.push_back(kDigits);
    return step.value("individual_digits", false);
  }
  if (type != "Split" || !step.contains("pattern") || !step["pattern"].contains("Regex"))
    return false;
  steps.push_back(step["pattern"]["Regex"].get<std::string>());
  // There are two ways to say that each match is a piece; the known expressions match everything.
  const std::string behavior = step.value("behavior", "");
  return behavior == (step.value("invert", false) ? "Removed" : "Isolated");
}

}  // namespace

std::string gguf_pre_tokenizer(const ConfigJson& tokenizer, const std::string& origin) {
  const ConfigJson whole = tokenizer.value("pre_tokenizer", ConfigJson());
  const bool several = whole.is_object() && whole.value("type", "") == "Sequence";
  const ConfigJson list = several ? whole.at("pretokenizers") : ConfigJson::array({whole});

  // The step that turns text into bytes comes last, whatever cuts before.
  std::vector<std::string> steps;
  bool known = !list.empty() && list.back().is_object();
  known = known && list.back().value("type", "") == "ByteLevel";
  for (size_t i = 0; known && i < list.size(); ++i)
    known = describe(list[i], steps);

  const bool ignore_merges = tokenizer.at("model").value("ignore_merges", false);
  if (known) {
    for (const KnownPreTokenizer& candidate : known_pre_tokenizers())
      if (candidate.steps == steps && candidate.ignore_merges == ignore_merges)
        return candidate.name;
  }
  throw Error(ErrorCode::kInvalidArgument,
              origin + ": llama.cpp has no pre-tokenizer that is known to be the same as " +
                  whole.dump() + (ignore_merges ? " with ignore_merges" : ""))
      .with("file", origin)
      .with("key", "pre_tokenizer");
}

}  // namespace retort::models
