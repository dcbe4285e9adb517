// The floating-point types a recipe may name.
#pragma once

#include "base/options.h"

namespace retort::recipes {

enum class FloatType { kFloat32, kBfloat16, kFloat16 };

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::FloatType> {
  using E = retort::recipes::FloatType;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"float32", E::kFloat32}, {"bfloat16", E::kBfloat16}, {"float16", E::kFloat16}}};
};
