#include "rpc/transport/key_schedule.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/error.h"
#include "base/hash.h"

namespace retort::rpc::transport {

std::string derive_key(std::string_view secret, std::string_view salt, std::string_view label) {
  // RFC 5869: PRK = HMAC(salt, secret); T(1) = HMAC(PRK, info | 0x01). One block is enough.
  return hmac_sha256(hmac_sha256(salt, secret), std::string(label) + '\x01');
}

std::string random_nonce() {
  std::string nonce(kKeyBytes, '\0');
  RETORT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kKeyBytes) == 1);
  return nonce;
}

std::string sha256_raw(std::string_view bytes) {
  std::string digest(kKeyBytes, '\0');
  unsigned length = 0;
  RETORT_CHECK(EVP_Digest(bytes.data(), bytes.size(),
                          reinterpret_cast<unsigned char*>(digest.data()), &length, EVP_sha256(),
                          nullptr) == 1 &&
               length == kKeyBytes);
  return digest;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace retort::rpc::transport
