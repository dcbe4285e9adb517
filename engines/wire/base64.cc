#include "engines/wire/base64.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace retort::engines {
namespace {

constexpr int8_t kNone = -1;

// The value of each character.
constexpr std::array<int8_t, 256> values() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> table{};
  table.fill(kNone);
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}

[[noreturn]] void no_base64(const std::string& why) {
  throw Error(ErrorCode::kCorrupt, "no base64: " + why);
}

}  // namespace

void Base64Bytes::add(std::string_view text) {
  static constexpr std::array<int8_t, 256> kValues = values();
  for (const char c : text) {
    ++num_characters_;
    if (c == '=') {
      ++num_padding_;
      continue;
    }
    // Padding ends the text, so no character may follow it.
    const int8_t value = kValues[static_cast<unsigned char>(c)];
    if (value == kNone || num_padding_ > 0)
      no_base64("its character " + std::to_string(num_characters_) + " cannot stand there");

    bits_ = (bits_ << 6) | static_cast<uint32_t>(value);
    num_bits_ += 6;
    if (num_bits_ < 8) continue;
    num_bits_ -= 8;
    bytes_.push_back(static_cast<uint8_t>(bits_ >> num_bits_));
  }
}

std::vector<uint8_t> Base64Bytes::take() {
  const uint32_t left = bits_ & ((1u << num_bits_) - 1);
  if (num_characters_ % 4 != 0 || num_padding_ > 2 || num_bits_ != 2 * num_padding_ || left != 0)
    no_base64("it ends after " + std::to_string(num_characters_) + " characters");
  return std::exchange(bytes_, {});
}

}  // namespace retort::engines
