#include "recipes/rules/data.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_block.h"
#include "recipes/data/source_files.h"

namespace retort::recipes {
namespace {

// A weight says how often the rows of a training source are seen, relative to the others'.
void check_weights(const data::DataOptions& data, const RecipePlaces& places) {
  const double usual = data::Source().weight;
  if (data.train.size() == 1 && data.train[0].weight != usual)
    places.refuse({"data", "train", "0", "weight"},
                  "has no effect on the only source, being relative to the weights of others; "
                  "remove the key");
  for (size_t i = 0; i < data.eval.size(); ++i)
    if (data.eval[i].weight != usual)
      places.refuse({"data", "eval", std::to_string(i), "weight"},
                    "has no effect: an evaluation sees every row once; remove the key");
}

// True if a source may hold rows of one of these formats; a source without a format may hold any.
bool may_hold(const data::DataOptions& data, std::initializer_list<data::Format> formats) {
  const auto fits = [&](const data::Source& source) {
    return source.format == data::Format::kAuto ||
           std::find(formats.begin(), formats.end(), source.format) != formats.end();
  };
  return std::any_of(data.train.begin(), data.train.end(), fits) ||
         std::any_of(data.eval.begin(), data.eval.end(), fits);
}

// The choice of target tokens is for rows of some formats only.
void check_target_choice(const data::DataOptions& data, const RecipePlaces& places) {
  using data::Format;
  const std::string why =
      "has no effect: no source holds such rows, as its `format` says; remove the key";
  if (!data.completion_only_loss && !may_hold(data, {Format::kPromptCompletion, Format::kAlpaca}))
    places.refuse({"data", "completion_only_loss"}, why);
  if (!data.assistant_only_loss && !may_hold(data, {Format::kMessages, Format::kShareGpt}))
    places.refuse({"data", "assistant_only_loss"}, why);
}

// Refuses settings that only a chat template sees if no source may hold messages.
void check_template_settings(const data::DataOptions& data, const RecipePlaces& places) {
  using data::Format;
  if (may_hold(data, {Format::kMessages, Format::kShareGpt, Format::kPromptCompletion,
                      Format::kPreference}))
    return;
  const std::string why =
      "has no effect: no source holds messages, as its `format` says; remove the key";
  if (data.chat_template) places.refuse({"data", "chat_template"}, why);
  if (data.chat_template_kwargs.json != JsonBlock().json)
    places.refuse({"data", "chat_template_kwargs"}, why);
  if (data.template_date) places.refuse({"data", "template_date"}, why);
}

// Checks that the files of these sources are there.
void check_sources(const std::string& block, const std::vector<data::Source>& sources,
                   const RecipePlaces& places) {
  for (size_t i = 0; i < sources.size(); ++i)
    try {
      data::expand_sources({sources[i]});
    } catch (const Error& error) {
      places.refuse({"data", block, std::to_string(i), "path"}, error.message());
    }
}

}  // namespace

void check_data(const data::DataOptions& data, const TrainOptions& train,
                const RecipePlaces& places) {
  if (data.train.empty())
    places.refuse({"data", "train"}, "no training data; expected train: [{path: train.jsonl}]");
  if (train.tokens_per_batch && *train.tokens_per_batch < data.max_length)
    places.refuse({"train", "tokens_per_batch"},
                  "smaller than one row of data.max_length = " + std::to_string(data.max_length));
}

void check_data_effects(const data::DataOptions& data, const RecipePlaces& places) {
  check_weights(data, places);
  check_target_choice(data, places);
  check_template_settings(data, places);
}

void check_source_files(const data::DataOptions& data, const RecipePlaces& places) {
  check_sources("train", data.train, places);
  check_sources("eval", data.eval, places);
}

void check_no_packing(const data::DataOptions& data, const RecipePlaces& places,
                      const std::string& what) {
  if (!data.packing)
    places.refuse(
        {"data", "packing"},
        "has no effect: " + what + " are always laid end to end, without padding; remove the key");
  const std::string whole = what + ", which are never cut in two";
  check_no_wrapping(data, places, whole);
  check_no_tokenized_cache(data, places, whole);
}

void check_keeps_start(const data::DataOptions& data, const RecipePlaces& places,
                       const std::string& why) {
  if (data.truncation_mode == data::TruncationMode::kKeepEnd)
    places.refuse({"data", "truncation_mode"},
                  "keep_end is for sft, distill and dpo; here " + why + "; remove the key");
}

void check_no_wrapping(const data::DataOptions& data, const RecipePlaces& places,
                       const std::string& what) {
  if (data.packing_strategy != data::PackingStrategy::kWhole)
    places.refuse({"data", "packing_strategy"},
                  "wrapped is for rows that can go on in the next pack; this recipe has " + what +
                      "; remove the key");
}

void check_no_tokenized_cache(const data::DataOptions& data, const RecipePlaces& places,
                              const std::string& what) {
  if (data.tokenized_cache)
    places.refuse(
        {"data", "tokenized_cache"},
        "holds the tokens of samples that are trained on as they stand; this recipe has " + what +
            ", which are tokenised as they are read; remove the key");
}

void check_no_target_choice(const data::DataOptions& data, const RecipePlaces& places,
                            const std::string& what) {
  const data::DataOptions defaults;
  const std::string message = "has no effect: this recipe trains on " + what + "; remove the key";
  if (data.completion_only_loss != defaults.completion_only_loss)
    places.refuse({"data", "completion_only_loss"}, message);
  if (data.assistant_only_loss != defaults.assistant_only_loss)
    places.refuse({"data", "assistant_only_loss"}, message);
}

}  // namespace retort::recipes
