#include "rpc/transport/refusal.h"

#include <array>

namespace retort::rpc::transport {
namespace {

struct Description {
  std::string_view name;
  ErrorCode code;
  const char* sentence;
};

// The descriptions stand in the order of the enum.
constexpr std::array<Description, kNumRefusals> kDescriptions{{
    {"none", ErrorCode::kUnauthenticated, "nothing was refused"},
    {"garbage", ErrorCode::kCorrupt, "the other side does not speak this protocol"},
    {"version", ErrorCode::kMismatch,
     "protocol versions differ; use the same release on both sides"},
    {"frame", ErrorCode::kCorrupt, "a frame of the proof is malformed"},
    {"peer", ErrorCode::kUnauthenticated, "this is not the peer that was wanted"},
    {"run", ErrorCode::kUnauthenticated, "the two sides belong to different runs"},
    {"credential", ErrorCode::kUnauthenticated, "the secret that the proof names is not known"},
    {"purpose", ErrorCode::kUnauthenticated, "connections for this purpose are not taken"},
    {"session", ErrorCode::kUnauthenticated, "there is no such session"},
    {"address", ErrorCode::kUnauthenticated,
     "the two sides see different addresses; somebody stands in between"},
    {"replay", ErrorCode::kUnauthenticated, "the proof was used before"},
    {"reflection", ErrorCode::kUnauthenticated, "the proof is an echo of our own"},
    {"proof", ErrorCode::kUnauthenticated,
     "the secrets differ, or the proof belongs to another connection"},
    {"schema", ErrorCode::kMismatch,
     "the two sides are different programs; use the same build on both"},
    {"closed", ErrorCode::kPeerLost, "the other side closed the connection during the proof"},
    {"timeout", ErrorCode::kTimeout, "the proof was not finished in time"},
    {"evicted", ErrorCode::kResourceExhausted,
     "too many connections that have not proved anything"},
}};

const Description& describe(Refusal refusal) { return kDescriptions[static_cast<size_t>(refusal)]; }

ErrorCode unproven_code(Refusal refusal) {
  const ErrorCode code = describe(refusal).code;
  return code == ErrorCode::kMismatch ? ErrorCode::kUnauthenticated : code;
}

}  // namespace

std::string_view to_string(Refusal refusal) { return describe(refusal).name; }

Error refusal_error(Refusal refusal) {
  return Error(describe(refusal).code, describe(refusal).sentence)
      .with("refusal", describe(refusal).name);
}

Error unproven_error(Refusal refusal) {
  return Error(unproven_code(refusal), describe(refusal).sentence)
      .with("refusal", describe(refusal).name);
}

Error refused_by_peer(Refusal refusal, bool proven) {
  return Error(proven ? describe(refusal).code : unproven_code(refusal),
               std::string("refused by the other side: ") + describe(refusal).sentence)
      .with("refusal", describe(refusal).name)
      .with("proven", proven ? "yes" : "no");
}

}  // namespace retort::rpc::transport
