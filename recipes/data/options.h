// A recipe's `data:` block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_block.h"
#include "base/options.h"

namespace retort::data {

enum class Format {
  kAuto,
  kMessages,
  kPromptCompletion,
  kText,
  kAlpaca,
  kShareGpt,
  kInputIds,
  kPreference
};
enum class OnBadSample { kError, kSkip };
// A row that is longer than a pack keeps its start alone, or goes on in the next.
enum class PackingStrategy { kWhole, kWrapped };

// The tokens that are kept of a row that is longer than max_length.
enum class TruncationMode { kKeepStart, kKeepEnd };

struct Source {
  std::string path;  // of files or of a folder: source_files()
  Format format = Format::kAuto;
  // canonical key -> column of the file, e.g. prompt: question
  std::map<std::string, std::string> columns;
  // Keys whose value is null are taken out of structs at every depth, as TRL's function of this
  // name does.
  bool remove_none_values = false;
  double weight = 1.0;  // share of this source in a mixture

  template <class V>
  void fields(V& visit) {
    visit(
        "path", path,
        "a file, a folder of files or a pattern such as data/*.parquet; JSONL, also .gz and .zst, "
        "a JSON array, Parquet, or Arrow");
    visit("format", format, "how rows are read; auto: by their keys");
    visit("columns", columns,
          "canonical key -> column, e.g. {prompt: question, answer: reward_model.ground_truth}");
    visit("remove_none_values", remove_none_values,
          "keys whose value is null are taken out of structs, as of tool calls that Parquet gave "
          "each other's arguments");
    visit("weight", weight, "times a row of this source is seen per epoch, relative to the others");
  }
};

struct DataOptions {
  std::vector<Source> train;
  std::vector<Source> eval;
  int64_t max_length = 1024;
  TruncationMode truncation_mode = TruncationMode::kKeepStart;
  bool packing = true;
  PackingStrategy packing_strategy = PackingStrategy::kWhole;
  bool shuffle = true;
  bool completion_only_loss = true;
  bool assistant_only_loss = true;
  OnBadSample on_bad_sample = OnBadSample::kError;
  std::optional<std::string> chat_template;
  JsonBlock chat_template_kwargs;
  std::optional<std::string> template_date;
  std::optional<std::string> tokenized_cache;

  template <class V>
  void fields(V& visit) {
    visit("train", train, "sources of training rows");
    visit("eval", eval, "sources of evaluation rows");
    visit("max_length", max_length, "most tokens of a row; of a longer one, truncation_mode");
    visit("truncation_mode", truncation_mode,
          "which tokens of a row longer than max_length are kept; of a pair each completion's own: "
          "keep_end may cut the two prompts differently; sft, distill and dpo only");
    visit("packing", packing,
          "several samples in a row of max_length, block-diagonal attention, positions restart");
    visit(
        "packing_strategy", packing_strategy,
        "whole: a row has a place in one pack, and what is beyond max_length is cut off; wrapped: "
        "rows are laid end to end and cut into packs, so that a long one goes on in the next");
    visit("shuffle", shuffle, "false: file order");
    visit("completion_only_loss", completion_only_loss,
          "prompt/completion rows: targets are the completion's tokens");
    visit("assistant_only_loss", assistant_only_loss,
          "messages rows: targets are the assistant's tokens");
    visit("on_bad_sample", on_bad_sample,
          "error: stop naming file and line; skip: count and report");
    visit("chat_template", chat_template,
          "a file with a Jinja template, or chatml or qwen3_training, in place of the model's; "
          "checkpoints and final/ have it; null: the model's own");
    visit("chat_template_kwargs", chat_template_kwargs,
          "what the chat template is given besides the messages, e.g. {enable_thinking: false}");
    visit("template_date", template_date,
          "the day that chat templates print, as 2026-11-23; null: the day on which the run began");
    visit("tokenized_cache", tokenized_cache,
          "a folder for the tokens of all rows, which the first run makes and later ones with the "
          "same data, tokenizer and options read; null: rows are tokenised as they are read");
  }
  void validate() const;
};

}  // namespace retort::data

template <>
struct retort::EnumNames<retort::data::Format> {
  using E = retort::data::Format;
  static constexpr std::array<std::pair<std::string_view, E>, 8> values{
      {{"auto", E::kAuto},
       {"messages", E::kMessages},
       {"prompt_completion", E::kPromptCompletion},
       {"text", E::kText},
       {"alpaca", E::kAlpaca},
       {"sharegpt", E::kShareGpt},
       {"input_ids", E::kInputIds},
       {"preference", E::kPreference}}};
};
template <>
struct retort::EnumNames<retort::data::TruncationMode> {
  using E = retort::data::TruncationMode;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"keep_start", E::kKeepStart}, {"keep_end", E::kKeepEnd}}};
};
template <>
struct retort::EnumNames<retort::data::PackingStrategy> {
  using E = retort::data::PackingStrategy;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"whole", E::kWhole}, {"wrapped", E::kWrapped}}};
};
template <>
struct retort::EnumNames<retort::data::OnBadSample> {
  using E = retort::data::OnBadSample;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"error", E::kError}, {"skip", E::kSkip}}};
};
