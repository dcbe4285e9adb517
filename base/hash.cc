#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/error.h"
#include "base/sizes.h"

namespace retort {
namespace {

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  RETORT_CHECK(impl_->context && EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::string_view bytes) {
  RETORT_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}
void Sha256::update(std::span<const std::byte> bytes) {
  RETORT_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex_digest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  RETORT_CHECK(EVP_DigestFinal_ex(impl_->context, digest, &length) == 1);
  return to_hex({reinterpret_cast<const char*>(digest), length});
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex_digest();
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  RETORT_CHECK(HMAC(EVP_sha256(), key.data(), to_int(key.size()),
                    reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest,
                    &length));
  return {reinterpret_cast<const char*>(digest), length};
}

bool constant_time_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_hex(size_t size) {
  std::string bytes(size, '\0');
  RETORT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), to_int(size)) == 1);
  return to_hex(bytes);
}

}  // namespace retort
