// What numpy.save writes of a matrix, and base64 of it, for tests of who reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace retort::test {

inline std::string npy_bytes(const std::vector<float>& numbers, const std::string& shape,
                             const std::string& dtype = "<f4",
                             const std::string& fortran = "False") {
  std::string header =
      "{'descr': '" + dtype + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  constexpr size_t kBefore = 10;  // bytes of magic, version and length
  while ((kBefore + header.size() + 1) % 64 != 0)
    header += ' ';
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header +
         std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
}

inline std::string base64_text(const std::string& bytes) {
  static const std::string kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j)
      bits = bits << 8 | (j < bytes.size() ? static_cast<uint8_t>(bytes[j]) : 0U);
    for (size_t j = 0; j < 4; ++j)
      text += i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
  }
  return text;
}

}  // namespace retort::test
