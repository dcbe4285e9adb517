// How requests and replies become bytes: our own bounded archives with cereal's calling convention.
//
// Use: a type takes part if it is one of bool, integers, enums, float, double, std::string,
//   at::Tensor, or std::vector, array, pair, map, optional of such, or if it has a member (the
//   version is 0)
//     template <class A>
//     void serialize(A& archive, uint32_t version) {
//       archive(a, b, c);
//     }
// Format: little-endian, fixed widths, no names. Both ends must have the same types, which the
//   proof and every call check (rpc/schema.h).
// Tensors: they travel out of band (Message::tensors) in the order of their archive() calls, or
//   inside the bytes (to_bytes / from_bytes), for checkpoints. Only dense CPU tensors go inside.
// Errors: reading is safe on hostile bytes. A size larger than the bytes that remain is kCorrupt
//   before anything is allocated, nesting is at most 16, an enum with EnumNames must be one of
//   them, and left-over bytes are an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
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

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <template <class...> class Template, class... Args>
inline constexpr bool kIs<Template<Args...>, Template> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;

// Counts one level of nesting for as long as it lives; throws beyond kMaxNesting.
class NestingLevel {
 public:
  NestingLevel(int& depth, ErrorCode code);
  ~NestingLevel() { --depth_; }
  NestingLevel(const NestingLevel&) = delete;
  NestingLevel& operator=(const NestingLevel&) = delete;

 private:
  int& depth_;
};

}  // namespace detail

class OutputArchive {
 public:
  explicit OutputArchive(detail::TensorPlace place = detail::TensorPlace::kOutOfBand)
      : place_(place) {}

  template <class... Ts>
  OutputArchive& operator()(const Ts&... values) {
    (write(values), ...);
    return *this;
  }
  Message finish() && { return std::move(message_); }

 private:
  template <class T>
  void write(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      write_scalar<uint8_t>(value ? 1 : 0);
    } else if constexpr (detail::kIsScalar<T>) {
      write_scalar(value);
    } else if constexpr (std::is_enum_v<T>) {
      write_scalar(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_same_v<T, std::string>) {
      write_text(value);
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      write_tensor(value);
    } else {
      detail::NestingLevel level(depth_, ErrorCode::kInvalidArgument);
      write_nested(value);
    }
  }

  template <class T>
  void write_nested(const T& value) {
    if constexpr (detail::kIs<T, std::vector>) {
      write_vector(value);
    } else if constexpr (detail::kIsArray<T>) {
      for (const auto& element : value)
        write(element);
    } else if constexpr (detail::kIs<T, std::map>) {
      write_scalar(static_cast<uint64_t>(value.size()));
      for (const auto& [key, mapped] : value) {
        write(key);
        write(mapped);
      }
    } else if constexpr (detail::kIs<T, std::pair>) {
      write(value.first);
      write(value.second);
    } else if constexpr (detail::kIs<T, std::optional>) {
      write_scalar<uint8_t>(value ? 1 : 0);
      if (value) write(*value);
    } else {
      // serialize() serves reading too, so it is not const; writing changes nothing.
      const_cast<T&>(value).serialize(*this, 0u);
    }
  }

  template <class Element>
  void write_vector(const std::vector<Element>& value) {
    static_assert(!std::is_empty_v<Element>, "elements without bytes cannot be bounded");
    write_scalar(static_cast<uint64_t>(value.size()));
    if constexpr (detail::kIsScalar<Element>) {
      append(value.data(), value.size() * sizeof(Element));
    } else {
      for (const Element& element : value)
        write<Element>(element);
    }
  }

  template <class T>
  void write_scalar(T value) {
    append(&value, sizeof value);
  }
  void append(const void* data, size_t size);
  void write_text(const std::string& text);
  void write_tensor(const at::Tensor& tensor);

  detail::TensorPlace place_;
  Message message_;
  int depth_ = 0;
};

class InputArchive {
 public:
  // `bytes` must outlive the archive. `tensors`: the ones that travelled out of band, or null if
  // they are inside the bytes.
  InputArchive(std::string_view bytes, std::vector<at::Tensor>* tensors)
      : rest_(bytes), tensors_(tensors) {}

  template <class... Ts>
  InputArchive& operator()(Ts&... values) {
    (read(values), ...);
    return *this;
  }

  size_t remaining_bytes() const { return rest_.size(); }
  // kCorrupt if bytes or tensors are left over.
  void finish() const;

 private:
  template <class T>
  void read(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = read_flag();
    } else if constexpr (detail::kIsScalar<T>) {
      read_into(&value, sizeof value);
    } else if constexpr (std::is_enum_v<T>) {
      value = read_enum<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = read_text();
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      value = read_tensor();
    } else {
      detail::NestingLevel level(depth_, ErrorCode::kCorrupt);
      read_nested(value);
    }
  }

  template <class T>
  void read_nested(T& value) {
    if constexpr (detail::kIs<T, std::vector>) {
      read_vector(value);
    } else if constexpr (detail::kIsArray<T>) {
      for (auto& element : value)
        read(element);
    } else if constexpr (detail::kIs<T, std::map>) {
      read_map(value);
    } else if constexpr (detail::kIs<T, std::pair>) {
      read(value.first);
      read(value.second);
    } else if constexpr (detail::kIs<T, std::optional>) {
      value.reset();
      if (read_flag()) read(value.emplace());
    } else {
      value.serialize(*this, 0u);
    }
  }

  template <class Element>
  void read_vector(std::vector<Element>& value) {
    value.clear();
    if constexpr (detail::kIsScalar<Element>) {
      const uint64_t size = read_size(sizeof(Element));
      value.resize(size);
      read_into(value.data(), size * sizeof(Element));
    } else {
      // Elements are appended one by one, so memory grows only as fast as bytes are consumed.
      const uint64_t size = read_size(1);
      for (uint64_t i = 0; i < size; ++i) {
        Element element{};
        read(element);
        value.push_back(std::move(element));
      }
    }
  }

  template <class Key, class Mapped>
  void read_map(std::map<Key, Mapped>& value) {
    value.clear();
    const uint64_t size = read_size(1);
    for (uint64_t i = 0; i < size; ++i) {
      Key key{};
      Mapped mapped{};
      read(key);
      read(mapped);
      if (!value.emplace(std::move(key), std::move(mapped)).second)
        corrupt("a key stands twice in a map");
    }
  }

  template <class E>
  E read_enum() {
    std::underlying_type_t<E> number{};
    read_into(&number, sizeof number);
    const E value = static_cast<E>(number);
    if constexpr (requires { EnumNames<E>::values; }) {
      bool known = false;
      for (const auto& entry : EnumNames<E>::values)
        known = known || entry.second == value;
      if (!known) corrupt("an enum has none of its values");
    }
    return value;
  }

  [[noreturn]] static void corrupt(const char* what);
  void read_into(void* data, size_t size);
  uint64_t read_size(size_t bytes_per_element);
  bool read_flag();
  std::string read_text();
  at::Tensor read_tensor();

  std::string_view rest_;
  std::vector<at::Tensor>* tensors_;
  size_t next_tensor_ = 0;
  int depth_ = 0;
};

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
