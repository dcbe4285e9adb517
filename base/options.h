// How option structs describe themselves.
//
// An option struct is an aggregate with defaults and one member
//     template <class V> void fields(V& visit) {
//       visit("learning_rate", learning_rate, "peak learning rate");
//       visit("loss_type", loss_type, "divergence between teacher and student");
//     }
// One visitor reads YAML into it, another writes the resolved recipe, a third the recipe reference
// in docs/. Field types: bool, int64_t, double, std::string, Duration, ShortDuration, ByteSize,
// FreeBlock, any enum with EnumNames, std::optional, std::vector, std::map<std::string, T>, and
// other option structs.
//
// Beside it stands `void validate() const`, which throws kInvalidArgument naming the field.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace retort {

// Specialise per enum: static constexpr std::array<std::pair<std::string_view, E>, N> values{...};
template <class E>
struct EnumNames;

template <class E>
std::string_view enum_name(E value) {
  for (const auto& [name, candidate] : EnumNames<E>::values)
    if (candidate == value) return name;
  return "?";
}

// "a | b | c"
template <class E>
std::string enum_choices() {
  std::string text;
  for (const auto& [name, value] : EnumNames<E>::values)
    text += (text.empty() ? "" : " | ") + std::string(name);
  return text;
}

// The candidate with the smallest edit distance to `word`, or "" if none is close (more than a
// third of its length).
std::string nearest_name(std::string_view word, std::span<const std::string_view> candidates);

// "a | b | c".
std::string choices_text(std::span<const std::string_view> choices);

// A value that is one of several names known at run time:
//   struct { std::string text; static std::vector<std::string_view> choices(); }
template <class T>
concept NamedChoice = requires(T value) {
  { value.text } -> std::convertible_to<std::string>;
  T::choices();
};

// kInvalidArgument listing the choices and the nearest one, if `text` is none of them.
void check_choice(std::string_view text, std::span<const std::string_view> choices);

// kInvalidArgument listing the choices and the nearest one.
template <class E>
E parse_enum(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : EnumNames<E>::values) {
    if (name == text) return value;
    names.push_back(name);
  }
  check_choice(text, names);
  RETORT_CHECK(false) << "a choice without a value";
  return {};
}

}  // namespace retort
