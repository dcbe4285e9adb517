// The four frames of a proof, as values and as bytes. Every frame has one size, so there is no
// length to believe; every field is checked before it is used.
//
//   client                                   server
//   ClientHello   nonce, names, MAC   ->
//                                        <-  ServerHello   nonce, addresses
//   ClientProof   MAC, schema           ->
//                                        <-  Verdict       accepted or why not, MAC, schema
//
// On the wire: magic (8 bytes), version (4), type (2), size of what follows (2), then the fields in
// the order of the structs; integers little-endian, texts as length (2 bytes) and their full field,
// padded with zeros. The first 16 bytes are the same in every version, so that any version can
// refuse any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rpc/transport/refusal.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

inline constexpr uint64_t kProofMagic = 0x31'54'52'4f'54'45'52'ffULL;  // ff "RETORT1"
inline constexpr uint32_t kProofVersion = 3;
inline constexpr size_t kProofHeaderBytes = 16;
inline constexpr size_t kMaxPeerNameBytes = 256;
inline constexpr size_t kMaxIdBytes = 64;

// What a connection is for. A control connection and one for supervision prove the run's secret,
// a data connection the key of its session.
enum class Purpose : uint8_t { kControl = 1, kData = 2, kSupervision = 3 };

enum class ProofFrame : uint16_t { kClientHello = 1, kServerHello, kClientProof, kVerdict };

// An address as one end sees it: 16 bytes of IPv6 (IPv4 mapped) and a port.
using AddressBytes = std::string;  // 18 bytes
AddressBytes address_bytes(const Stream::Endpoint& endpoint);

struct ClientHello {
  uint8_t purpose = 0;     // Purpose, unchecked
  std::string nonce;       // 32 bytes
  std::string name;        // who sends this: "student/0"
  std::string target;      // whom it wants: "teacher/0"
  std::string run;         // SHA-256 of the run's id
  std::string credential;  // the name of the secret that it will prove; empty for data
  std::string session;     // of a data connection
  AddressBytes local, remote;
  std::string mac;  // 32 bytes: who does not know the secret gets no place
};

struct ServerHello {
  std::string nonce;
  std::string name;
  AddressBytes local, remote;
};

struct ClientProof {
  std::string mac;     // 32 bytes
  std::string schema;  // SHA-256 of what the two programs must have in common
};

struct Verdict {
  Refusal refusal = Refusal::kNone;
  std::string mac;     // 32 bytes; zeros when the client has proved nothing
  std::string schema;  // zeros when the client has proved nothing
};

// Bytes with the header.
std::string to_bytes(const ClientHello& hello);
std::string to_bytes(const ServerHello& hello);
std::string to_bytes(const ClientProof& proof);
std::string to_bytes(const Verdict& verdict);

// The number of bytes after the header.
size_t body_bytes(ProofFrame type);
// What is wrong with a header, if `expected` is to come: kGarbage, kVersion, kFrame, or kNone.
Refusal check_header(std::string_view header, ProofFrame expected);
bool is_verdict(std::string_view header);

// From the bytes after the header, which are body_bytes() many. False if a field is impossible.
bool parse(std::string_view body, ClientHello& hello);
bool parse(std::string_view body, ServerHello& hello);
bool parse(std::string_view body, ClientProof& proof);
bool parse(std::string_view body, Verdict& verdict);

}  // namespace retort::rpc::transport
