// What a type is on the wire, as a text: the types of what its serialize() archives, in order. Two
// processes that have the same text for a method read each other's bytes as they were meant.
//
// Text: scalars are bool, i8 to i64, u8 to u64, f32, f64; string; tensor. [x] is a vector, [x*3] an
//   array, x? an optional, (x y) a pair, map(x y), {x y} a type of its own; an enum has its values
//   behind its scalar. `up0` is the type around it, which holds itself, `up1`
//   the one around that.
// What it does not show: the names of fields, and what they mean. A method whose request keeps the
//   types of its fields and changes their meaning needs another name.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "rpc/archive.h"
#include "rpc/method.h"

namespace retort::rpc {

namespace detail {

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <template <class...> class Template, class... Args>
inline constexpr bool kIs<Template<Args...>, Template> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;

template <class T>
concept NamedEnum = requires {
  EnumNames<T>::values.size();
};

// Has the calling convention of the archives, and writes down types instead of values.
class SchemaArchive {
 public:
  template <class... Ts>
  SchemaArchive& operator()(const Ts&...) {
    (describe<Ts>(), ...);
    return *this;
  }

  template <class T>
  void describe() {
    separate();
    if constexpr (std::is_same_v<T, bool>) {
      text_ += "bool";
    } else if constexpr (kIsScalar<T>) {
      text_ += scalar_name<T>();
    } else if constexpr (std::is_enum_v<T>) {
      describe_enum<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      text_ += "string";
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      text_ += "tensor";
    } else {
      describe_nested<T>();
    }
  }
  std::string finish() && { return std::move(text_); }

 private:
  template <class T>
  static std::string scalar_name() {
    const char* kind = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
    return kind + std::to_string(8 * sizeof(T));
  }

  template <class T>
  void describe_enum() {
    text_ += scalar_name<std::underlying_type_t<T>>();
    if constexpr (NamedEnum<T>) {
      std::string values;
      for (const auto& [name, value] : EnumNames<T>::values)
        values += (values.empty() ? "" : "|") + std::string(name) + "=" +
                  std::to_string(static_cast<int64_t>(value));
      text_ += "(" + values + ")";
    }
  }

  template <class T>
  void describe_nested() {
    if constexpr (kIs<T, std::vector>) {
      enclose<typename T::value_type>("[", "]");
    } else if constexpr (kIsArray<T>) {
      enclose<typename T::value_type>("[", "*" + std::to_string(std::tuple_size_v<T>) + "]");
    } else if constexpr (kIs<T, std::map>) {
      enclose<typename T::key_type, typename T::mapped_type>("map(", ")");
    } else if constexpr (kIs<T, std::pair>) {
      enclose<typename T::first_type, typename T::second_type>("(", ")");
    } else if constexpr (kIs<T, std::optional>) {
      enclose<typename T::value_type>("", "?");
    } else {
      describe_own<T>();
    }
  }

  template <class... Ts>
  void enclose(std::string_view begin, std::string_view end) {
    text_ += begin;
    first_ = true;
    (describe<Ts>(), ...);
    text_ += end;
    first_ = false;
  }

  // A type that holds itself would be described for ever.
  template <class T>
  void describe_own() {
    const auto outer = std::find(around_.rbegin(), around_.rend(), std::type_index(typeid(T)));
    if (outer != around_.rend()) {
      text_ += "up" + std::to_string(outer - around_.rbegin());
      return;
    }
    around_.emplace_back(typeid(T));
    text_ += "{";
    first_ = true;
    T value{};
    value.serialize(*this);
    text_ += "}";
    first_ = false;
    around_.pop_back();
  }

  void separate() {
    if (!first_) text_ += " ";
    first_ = false;
  }

  std::string text_;
  bool first_ = true;  // in what is being enclosed
  std::vector<std::type_index> around_;
};

}  // namespace detail

template <class T>
std::string schema_text() {
  detail::SchemaArchive archive;
  archive.describe<T>();
  return std::move(archive).finish();
}

// The first 64 bits of its SHA-256.
uint64_t schema_hash(std::string_view text);
// "00c0ffee00c0ffee"
std::string schema_name(uint64_t hash);

// "{u64 string} -> {tensor}"
template <class Request, class Reply>
std::string method_schema_text() {
  return schema_text<Request>() + " -> " + schema_text<Reply>();
}

// The hash of the text; computed once for each pair of types.
template <class Request, class Reply>
uint64_t method_schema(const Method<Request, Reply>&) {
  static const uint64_t hash = schema_hash(method_schema_text<Request, Reply>());
  return hash;
}

}  // namespace retort::rpc
