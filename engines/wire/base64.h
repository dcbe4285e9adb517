// Bytes from base64 (RFC 4648) that arrives in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace retort::engines {

// Use: add() for each piece, however it is cut, then take().
// Errors: kCorrupt for a character that is none of base64, and for a text that is no whole one:
//   its length, its padding, or bits that belong to no byte.
// Memory: the bytes.
class Base64Bytes {
 public:
  void add(std::string_view text);
  std::vector<uint8_t> take();

 private:
  std::vector<uint8_t> bytes_;
  uint32_t bits_ = 0;
  int num_bits_ = 0;  // that belong to no byte yet
  uint64_t num_characters_ = 0;
  int num_padding_ = 0;
};

}  // namespace retort::engines
