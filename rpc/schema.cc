#include "rpc/schema.h"

#include "base/hash.h"

namespace retort::rpc {

uint64_t schema_hash(std::string_view text) {
  return std::stoull(sha256_hex(text).substr(0, 16), nullptr, 16);
}

std::string schema_name(uint64_t hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name(16, '0');
  for (size_t i = name.size(); i-- > 0; hash >>= 4)
    name[i] = kDigits[hash & 0xf];
  return name;
}

}  // namespace retort::rpc
