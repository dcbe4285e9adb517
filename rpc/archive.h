// How requests and replies become bytes: bounded archives of ours under cereal's traits.
//
// Use: a type takes part if it is one of bool, integers, enums, float, double, std::string,
//   at::Tensor, or std::vector, array, pair, map, optional of such, or if it has a member
//     template <class A>
//     void serialize(A& archive) {
//       archive(a, b, c);
//     }
// Format: little-endian, fixed widths, no names. Both ends must have the same types, which the
//   proof and every call check (rpc/schema.h).
// Tensors: they travel out of band (Message::tensors) in the order of their archive() calls, or
//   inside the bytes (to_bytes / from_bytes), for checkpoints. Only dense CPU tensors go inside.
// Errors: reading is safe on hostile bytes. A size larger than the bytes that remain is kCorrupt
//   before anything is allocated, nesting is at most 16, an enum with EnumNames must be one of
//   them, and left-over bytes are an error.
// cereal: strings, arrays and pairs are read by its own headers, which take memory only after a
//   size was checked here. Its vectors, maps and optionals are replaced by those below: it makes as
//   many elements as a size says before it reads the first, and drops a key that stands twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cereal/cereal.hpp>
#include <cereal/types/array.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/utility.hpp>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/options.h"

namespace retort::rpc {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

inline constexpr int kMaxNesting = 16;

// An encoded value: its bytes and the tensors that travel beside them.
struct Message {
  std::string envelope;
  std::vector<at::Tensor> tensors;
};

namespace detail {

enum class TensorPlace { kOutOfBand, kInline };

template <class T>
inline constexpr bool kIsScalar =
    std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, long double>;

// What cereal wraps around the parts of a value.
template <class T>
inline constexpr bool kIsWrapper = std::is_base_of_v<cereal::detail::NameValuePairCore, T>;
template <class T>
inline constexpr bool kIsWrapper<cereal::SizeTag<T>> = true;
template <class T>
inline constexpr bool kIsWrapper<cereal::BinaryData<T>> = true;

// Values in which others stand: each is a level of nesting.
template <class T>
inline constexpr bool kIsNested =
    !std::is_arithmetic_v<T> && !std::is_enum_v<T> && !std::is_same_v<T, std::string> &&
    !std::is_same_v<T, at::Tensor> && !kIsWrapper<T>;

template <class T>
concept Scalar = kIsScalar<T>;
// The bytes of a std::string: as cereal asks whether they can be archived, and as it does it. A
// size tag counts bytes: of wider elements it would let more through than there are.
template <class T>
concept Characters = std::is_same_v<T, char> || std::is_convertible_v<T, const char*>;

}  // namespace detail

class OutputArchive : public cereal::OutputArchive<OutputArchive> {
 public:
  explicit OutputArchive(detail::TensorPlace place = detail::TensorPlace::kOutOfBand)
      : cereal::OutputArchive<OutputArchive>(this), place_(place) {}

  Message finish() && { return std::move(message_); }

  // The rest is for the functions below, which say how each type is written.
  void append(const void* data, size_t size);
  template <detail::Scalar T>
  void append(T value) {
    append(&value, sizeof value);
  }
  void append_tensor(const at::Tensor& tensor);
  void enter();
  void leave() { --depth_; }

 private:
  detail::TensorPlace place_;
  Message message_;
  int depth_ = 0;
};

class InputArchive : public cereal::InputArchive<InputArchive> {
 public:
  // `bytes` must outlive the archive. `tensors`: the ones that travelled out of band, or null if
  // they are inside the bytes.
  InputArchive(std::string_view bytes, std::vector<at::Tensor>* tensors)
      : cereal::InputArchive<InputArchive>(this), rest_(bytes), tensors_(tensors) {}

  size_t remaining_bytes() const { return rest_.size(); }
  // kCorrupt if bytes or tensors are left over.
  void finish() const;

  // The rest is for the functions below, which say how each type is read. After an error the
  // archive is of no use.
  [[noreturn]] static void corrupt(const char* what);
  void take(void* data, size_t size);
  // A number of elements, of at least so many bytes each, that can follow.
  uint64_t take_size(size_t bytes_per_element);
  bool take_flag();
  at::Tensor take_tensor();
  void enter();
  void leave() { --depth_; }

 private:
  std::string_view rest_;
  std::vector<at::Tensor>* tensors_;
  size_t next_tensor_ = 0;
  int depth_ = 0;
};

}  // namespace retort::rpc

CEREAL_SETUP_ARCHIVE_TRAITS(retort::rpc::InputArchive, retort::rpc::OutputArchive)

namespace retort::rpc {

// cereal finds the functions that follow through the namespace of the archives.

// ---- what cereal calls before and after each value ----------------------------------------------
template <class T>
void prologue(OutputArchive& archive, const T&) {
  static_assert(!cereal::traits::has_member_versioned_serialize<T, OutputArchive>(),
                "serialize() takes the archive alone: rpc/schema.h compares types, not versions");
  if constexpr (detail::kIsNested<T>) archive.enter();
}
template <class T>
void epilogue(OutputArchive& archive, const T&) {
  if constexpr (detail::kIsNested<T>) archive.leave();
}
template <class T>
void prologue(InputArchive& archive, const T&) {
  if constexpr (detail::kIsNested<T>) archive.enter();
}
template <class T>
void epilogue(InputArchive& archive, const T& value) {
  if constexpr (detail::kIsNested<T>) archive.leave();
  if constexpr (requires { EnumNames<T>::values; }) {
    bool known = false;
    for (const auto& entry : EnumNames<T>::values)
      known = known || entry.second == value;
    if (!known) archive.corrupt("an enum has none of its values");
  }
}

// ---- how each type is written and read ----------------------------------------------------------
template <std::same_as<bool> T>
void save(OutputArchive& archive, const T& value) {
  archive.append<uint8_t>(value ? 1 : 0);
}
template <std::same_as<bool> T>
void load(InputArchive& archive, T& value) {
  value = archive.take_flag();
}

template <detail::Scalar T>
void save(OutputArchive& archive, const T& value) {
  archive.append(value);
}
template <detail::Scalar T>
void load(InputArchive& archive, T& value) {
  archive.take(&value, sizeof value);
}

template <std::same_as<at::Tensor> T>
void save(OutputArchive& archive, const T& value) {
  archive.append_tensor(value);
}
template <std::same_as<at::Tensor> T>
void load(InputArchive& archive, T& value) {
  value = archive.take_tensor();
}

template <class Element>
void save(OutputArchive& archive, const std::vector<Element>& value) {
  static_assert(!std::is_empty_v<Element>, "elements without bytes cannot be bounded");
  archive.append<uint64_t>(value.size());
  if constexpr (detail::kIsScalar<Element>) {
    archive.append(value.data(), value.size() * sizeof(Element));
  } else {
    for (const Element& element : value)
      archive(element);
  }
}
template <class Element>
void load(InputArchive& archive, std::vector<Element>& value) {
  value.clear();
  if constexpr (detail::kIsScalar<Element>) {
    value.resize(archive.take_size(sizeof(Element)));
    archive.take(value.data(), value.size() * sizeof(Element));
  } else {
    // Elements are appended one by one, so memory grows only as fast as bytes are consumed.
    const uint64_t size = archive.take_size(1);
    for (uint64_t i = 0; i < size; ++i) {
      Element element{};
      archive(element);
      value.push_back(std::move(element));
    }
  }
}

template <class Key, class Mapped>
void save(OutputArchive& archive, const std::map<Key, Mapped>& value) {
  archive.append<uint64_t>(value.size());
  for (const auto& [key, mapped] : value)
    archive(key, mapped);
}
template <class Key, class Mapped>
void load(InputArchive& archive, std::map<Key, Mapped>& value) {
  value.clear();
  const uint64_t size = archive.take_size(1);
  for (uint64_t i = 0; i < size; ++i) {
    Key key{};
    Mapped mapped{};
    archive(key, mapped);
    // In the order they are written in, so that one map has one form.
    if (!value.empty() && !(value.rbegin()->first < key))
      archive.corrupt("the keys of a map do not rise");
    value.emplace_hint(value.end(), std::move(key), std::move(mapped));
  }
}

template <class T>
void save(OutputArchive& archive, const std::optional<T>& value) {
  archive(value.has_value());
  if (value) archive(*value);
}
template <class T>
void load(InputArchive& archive, std::optional<T>& value) {
  value.reset();
  if (archive.take_flag()) archive(value.emplace());
}

// ---- what cereal's own headers are made of ------------------------------------------------------
template <class T>
void save(OutputArchive& archive, const cereal::SizeTag<T>& tag) {
  archive.append<uint64_t>(tag.size);
}
template <class T>
void load(InputArchive& archive, cereal::SizeTag<T>& tag) {
  tag.size = archive.take_size(1);
}
template <detail::Characters T>
void save(OutputArchive& archive, const cereal::BinaryData<T>& text) {
  archive.append(text.data, text.size);
}
template <detail::Characters T>
void load(InputArchive& archive, cereal::BinaryData<T>& text) {
  archive.take(text.data, text.size);
}
template <class T>
void save(OutputArchive& archive, const cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <class T>
void load(InputArchive& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}

// Tensors are made dense and are shared with the message, not copied, when they already are.
// kInvalidArgument for what cannot travel: sparse or quantized tensors, more than 16 dims, nesting
// beyond 16.
template <class T>
Message encode(const T& value) {
  OutputArchive archive;
  archive(value);
  return std::move(archive).finish();
}

// kCorrupt if the message is not exactly one T.
template <class T>
T decode(Message message) {
  InputArchive archive(message.envelope, &message.tensors);
  T value{};
  archive(value);
  archive.finish();
  return value;
}

// One string with everything inside, tensors too (small ones: they are copied).
template <class T>
std::string to_bytes(const T& value) {
  OutputArchive archive(detail::TensorPlace::kInline);
  archive(value);
  return std::move(archive).finish().envelope;
}

template <class T>
T from_bytes(std::string_view bytes) {
  InputArchive archive(bytes, nullptr);
  T value{};
  archive(value);
  archive.finish();
  return value;
}

}  // namespace retort::rpc
