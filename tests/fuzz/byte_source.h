// Takes choices out of a fuzzer's input: numbers and texts from its front, in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace retort::fuzz {

// Past the end of the input everything is 0 and empty.
class ByteSource {
 public:
  explicit ByteSource(std::string_view bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  template <class Integer>
  Integer number() {
    Integer value = 0;
    const std::string_view bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  uint8_t byte() { return number<uint8_t>(); }
  // Its length (1 byte) and as many bytes.
  std::string_view text() { return take(byte()); }
  std::string_view rest() { return take(rest_.size()); }

 private:
  std::string_view take(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
};

// The other direction, for seeds.
class ByteSink {
 public:
  template <class Integer>
  ByteSink& number(Integer value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteSink& byte(uint8_t value) { return number(value); }
  ByteSink& text(std::string_view text) {
    return byte(static_cast<uint8_t>(text.size())).raw(text);
  }
  ByteSink& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  std::string bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace retort::fuzz
