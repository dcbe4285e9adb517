// `roles.student.lora`: an adapter is trained instead of the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/text_or_list.h"
#include "models/lora/lora_config.h"

namespace retort::recipes {

enum class LoraPush { kMerged, kAdapter };

struct LoraOptions {
  int64_t r = 16;
  double lora_alpha = 32;
  bool use_rslora = false;
  double lora_dropout = 0;
  TextOrList target_modules{.items = {"all-linear"}};
  std::vector<std::string> modules_to_save;
  std::optional<std::string> adapter;
  LoraPush push = LoraPush::kMerged;

  template <class V>
  void fields(V& visit) {
    visit("r", r, "rank of the adapter's factors");
    visit("lora_alpha", lora_alpha, "lora_alpha / r times the factors' product is added");
    visit("use_rslora", use_rslora, "lora_alpha / sqrt(r) in its place (rsLoRA)");
    visit("lora_dropout", lora_dropout,
          "while training, the share of the elements of an adapter's input that are dropped");
    visit(
        "target_modules", target_modules,
        "the layers that are adapted: all-linear, names such as q_proj, or a text that is a regex "
        "of whole names");
    visit("modules_to_save", modules_to_save,
          "ends of the names of layers that are trained whole beside the adapter: embed_tokens, "
          "lm_head, norm");
    visit("adapter", adapter,
          "folder of a PEFT adapter that training starts from; null: a new one, which changes "
          "nothing at first");
    visit("push", push,
          "what a generator is sent: the weights with the adapter added to them, or the adapter "
          "alone, which a generator that is not external merges into the same model");
  }
  // kInvalidArgument naming the field.
  void validate() const;
  models::LoraConfig config() const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::LoraPush> {
  using E = retort::recipes::LoraPush;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"merged", E::kMerged}, {"adapter", E::kAdapter}}};
};
