// Why a proof failed. Each reason is an Error of its own text and code, and a counter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace retort::rpc::transport {

enum class Refusal : uint8_t {
  kNone,
  kGarbage,     // not this protocol at all
  kVersion,     // this protocol, another version
  kFrame,       // a frame of another type or size, or with impossible contents
  kPeer,        // it is not the peer that was wanted, or not the one that the session belongs to
  kRun,         // another run
  kCredential,  // no secret of this name is known here
  kPurpose,     // none that is known, or not wanted here
  kSession,     // no such session
  kAddress,     // the two ends see different addresses: somebody stands in between
  kReplay,      // this nonce was used before
  kReflection,  // our own words came back
  kProof,       // the secret or the session's key is not known to the other side, or bytes changed
  kSchema,      // the secret is right, but the two sides are different programs
  kClosed,      // the other side closed the connection
  kTimeout,     // it was not finished in time
  kEvicted,     // it gave way to a newer connection
};
inline constexpr size_t kNumRefusals = static_cast<size_t>(Refusal::kEvicted) + 1;

// The name in logs and metrics: "address".
std::string_view to_string(Refusal refusal);
// An Error with the code for this reason, a sentence, and the pair refusal=<name>.
Error refusal_error(Refusal refusal);
// The same, seen at an address where nobody has proved anything: whoever has the port of a peer
// that is gone may say what he likes, so that kMismatch, which is final, becomes kUnauthenticated.
Error unproven_error(Refusal refusal);
// The other side's reason, as it came over the wire; `proven` if it was signed. Otherwise its code
// is that of unproven_error().
Error refused_by_peer(Refusal refusal, bool proven);

}  // namespace retort::rpc::transport
