// SHA-256 and HMAC-SHA-256 for fingerprints and authentication.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace retort {

// Incremental SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::string_view bytes);
  void update(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits; the object may not be used afterwards.
  std::string hex_digest();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string sha256_hex(std::string_view bytes);
// 32 raw bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);
// Compares in a time that does not tell where the two differ.
bool constant_time_equal(std::string_view a, std::string_view b);
// `size` bytes from the operating system's generator, as lower-case hexadecimal digits.
std::string random_hex(size_t size);

}  // namespace retort
