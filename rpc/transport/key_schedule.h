// The keys of a proof, derived by HKDF-SHA-256 (RFC 5869).
//
//   secret + run: "retort run key"
//   key of the run, or of a session
//     +-- "retort client hello"                          the key of the hello's MAC
//     +-- "retort client proof", "retort server proof"   the keys of the two MACs
//     +-- with the whole transcript: "retort session key", "retort session id"
//
// All keys are 32 bytes. The labels keep one side's proof from being the other's, and a proof from
// being a key.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace retort::rpc::transport {

inline constexpr size_t kKeyBytes = 32;

// HKDF-Extract(salt, secret), then one HKDF-Expand to `kKeyBytes` with `label` as its info.
std::string derive_key(std::string_view secret, std::string_view salt, std::string_view label);

// 32 bytes from the operating system's generator.
std::string random_nonce();
std::string sha256_raw(std::string_view bytes);
std::string to_hex(std::string_view bytes);

}  // namespace retort::rpc::transport
