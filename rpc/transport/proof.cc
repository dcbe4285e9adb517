#include "rpc/transport/proof.h"

#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "rpc/transport/key_schedule.h"

namespace retort::rpc::transport {
namespace {

constexpr size_t kMaxNonces = 4096;
constexpr std::string_view kSalt = "retort proof 3";

// The transcript is everything both sides have said, and the connection they said it on. Every part
// but the last has a fixed size, so that different parts never give the same bytes.
std::string transcript(const ClientHello& client, const ServerHello& server,
                       const ConnectionFacts& facts) {
  return to_bytes(client) + to_bytes(server) + facts.channel_binding;
}

std::string client_mac(const std::string& key, const std::string& said, const std::string& schema) {
  return hmac_sha256(derive_key(key, kSalt, "retort client proof"), said + schema);
}

std::string server_mac(const std::string& key, const std::string& said, const ClientProof& proof,
                       const Verdict& verdict) {
  return hmac_sha256(
      derive_key(key, kSalt, "retort server proof"),
      said + proof.mac + proof.schema + verdict.schema + static_cast<char>(verdict.refusal));
}

// Returns what both sides have when the proof is done.
Proven outcome(const std::string& key, const std::string& said, const ClientProof& proof,
               const ClientHello& client, std::string peer) {
  const std::string all = sha256_raw(said + proof.mac);
  Proven proven;
  proven.purpose = static_cast<Purpose>(client.purpose);
  proven.peer = std::move(peer);
  proven.credential = client.credential;
  proven.key = derive_key(key, all, "retort session key");
  proven.session = client.session;
  if (proven.purpose != Purpose::kData)
    proven.session = to_hex(derive_key(key, all, "retort session id").substr(0, 16));
  return proven;
}

bool same_addresses(const ConnectionFacts& facts, const AddressBytes& their_local,
                    const AddressBytes& their_remote) {
  return address_bytes(facts.local) == their_remote && address_bytes(facts.remote) == their_local;
}

ProofStep refused(Refusal refusal) { return {ServerRules::refusal_bytes(refusal), refusal}; }

}  // namespace

void Identity::validate() const {
  const auto require = [](bool fine, const char* what) {
    if (!fine) throw Error(ErrorCode::kInvalidArgument, what);
  };
  require(!name.empty() && name.size() <= kMaxPeerNameBytes,
          "an agent needs a name like 'student/0', at most 256 bytes");
  require(!credentials.empty(), "an agent needs the run's secret");
  for (const auto& credential : credentials) {
    require(!credential.id.empty() && credential.id.size() <= kMaxIdBytes,
            "a credential needs a name of at most 64 bytes");
    require(!credential.secret.empty(),
            "a credential needs a secret; make one with random_hex(32)");
  }
}

std::string run_key(const std::string& secret, const std::string& run) {
  return derive_key(secret, sha256_raw(run), "retort run key");
}

std::string hello_mac(const std::string& key, const ClientHello& hello,
                      const ConnectionFacts& facts) {
  ClientHello bare = hello;
  bare.mac.clear();
  return hmac_sha256(derive_key(key, kSalt, "retort client hello"),
                     to_bytes(bare) + facts.channel_binding);
}

void NonceMemory::remember(const std::string& nonce) {
  if (!nonces_.insert(nonce).second) return;
  order_.push_back(nonce);
  if (order_.size() <= kMaxNonces) return;
  nonces_.erase(order_.front());
  order_.pop_front();
}

ServerRules::ServerRules(const Identity& identity, const ServerPolicy& policy,
                         ConnectionFacts facts)
    : identity_(identity), policy_(policy), facts_(std::move(facts)) {}

std::string ServerRules::refusal_bytes(Refusal refusal) {
  // Whoever does not speak the protocol gets no answer in it.
  if (refusal == Refusal::kGarbage) return {};
  return to_bytes(Verdict{.refusal = refusal});
}

// Finds the key that is to be proved, or the reason why a proof would be pointless.
Refusal ServerRules::check_hello() {
  if (client_.target != identity_.name) return Refusal::kPeer;
  if (client_.name == identity_.name) return Refusal::kReflection;
  const bool is_meeting =
      !identity_.meeting.empty() && client_.run == sha256_raw(identity_.meeting);
  if (!is_meeting && client_.run != sha256_raw(identity_.run)) return Refusal::kRun;
  if (is_meeting && static_cast<Purpose>(client_.purpose) != Purpose::kControl)
    return Refusal::kPurpose;
  if (identity_.compare_addresses && !same_addresses(facts_, client_.local, client_.remote))
    return Refusal::kAddress;
  if (policy_.nonces != nullptr && policy_.nonces->knows(client_.nonce)) return Refusal::kReplay;

  // A connection of the run is proved with the run's secret, a data connection with the key of its
  // session, and by the session's peer.
  const auto purpose = static_cast<Purpose>(client_.purpose);
  const bool is_for_run = (purpose == Purpose::kControl && policy_.control) ||
                          (purpose == Purpose::kSupervision && policy_.supervision);
  if (is_for_run) {
    for (const auto& credential : identity_.credentials)
      if (credential.id == client_.credential)
        key_ = run_key(credential.secret, is_meeting ? identity_.meeting : identity_.run);
    return key_.empty() ? Refusal::kCredential : Refusal::kNone;
  }
  if (purpose == Purpose::kData && policy_.find_session) {
    const auto session = policy_.find_session(client_.session);
    if (!session) return Refusal::kSession;
    if (session->peer != client_.name) return Refusal::kPeer;
    key_ = session->key;
    return Refusal::kNone;
  }
  return Refusal::kPurpose;
}

ProofStep ServerRules::on_client_hello(std::string_view body) {
  if (!parse(body, client_)) return refused(Refusal::kFrame);
  if (const Refusal refusal = check_hello(); refusal != Refusal::kNone) return refused(refusal);
  if (!constant_time_equal(client_.mac, hello_mac(key_, client_, facts_)))
    return refused(Refusal::kProof);
  // Only a hello that shows the secret is remembered, or strangers could push the others out of the
  // memory.
  if (policy_.nonces != nullptr) policy_.nonces->remember(client_.nonce);

  server_ = {.nonce = random_nonce(),
             .name = identity_.name,
             .local = address_bytes(facts_.local),
             .remote = address_bytes(facts_.remote)};
  return {to_bytes(server_), Refusal::kNone};
}

ProofStep ServerRules::on_client_proof(std::string_view body) {
  ClientProof proof;
  if (!parse(body, proof)) return refused(Refusal::kFrame);
  const std::string said = transcript(client_, server_, facts_);
  Verdict verdict{.schema = sha256_raw(identity_.schema)};

  // Only a peer that knows the secret learns anything about this program.
  if (!constant_time_equal(proof.mac, client_mac(key_, said, proof.schema)))
    return refused(Refusal::kProof);
  if (proof.schema != verdict.schema) verdict.refusal = Refusal::kSchema;

  verdict.mac = server_mac(key_, said, proof, verdict);
  proven_ = outcome(key_, said, proof, client_, client_.name);
  return {to_bytes(verdict), verdict.refusal};
}

ClientRules::ClientRules(const Identity& identity, ProofTarget target, ConnectionFacts facts)
    : identity_(identity),
      target_(std::move(target)),
      facts_(std::move(facts)),
      error_(refusal_error(Refusal::kNone)) {
  const bool is_for_run = target_.purpose != Purpose::kData;
  key_ =
      is_for_run ? run_key(identity_.credentials.at(0).secret, identity_.run) : target_.session_key;
  client_ = {.purpose = static_cast<uint8_t>(target_.purpose),
             .nonce = random_nonce(),
             .name = identity_.name,
             .target = target_.name,
             .run = sha256_raw(identity_.run),
             .credential = is_for_run ? identity_.credentials.at(0).id : "",
             .session = target_.session,
             .local = address_bytes(facts_.local),
             .remote = address_bytes(facts_.remote)};
  client_.mac = hello_mac(key_, client_, facts_);
}

ProofStep ClientRules::on_server_hello(std::string_view body) {
  // All this is checked before the proof is formed: only the server that was dialed may get it.
  Refusal refusal = Refusal::kNone;
  if (!parse(body, server_))
    refusal = Refusal::kFrame;
  else if (server_.nonce == client_.nonce)
    refusal = Refusal::kReflection;
  else if (server_.name != target_.name)
    refusal = Refusal::kPeer;
  else if (identity_.compare_addresses && !same_addresses(facts_, server_.local, server_.remote))
    refusal = Refusal::kAddress;
  if (refusal != Refusal::kNone) {
    error_ = refusal_error(refusal);
    return {"", refusal};
  }

  proof_.schema = sha256_raw(identity_.schema);
  proof_.mac = client_mac(key_, transcript(client_, server_, facts_), proof_.schema);
  return {to_bytes(proof_), Refusal::kNone};
}

Refusal ClientRules::on_verdict(std::string_view body) {
  Verdict verdict;
  if (!parse(body, verdict)) {
    error_ = refusal_error(Refusal::kFrame);
    return Refusal::kFrame;
  }

  // A refusal may come before anything is proved; it is then only a hint.
  const std::string said = transcript(client_, server_, facts_);
  const bool signed_by_server =
      !proof_.mac.empty() &&
      constant_time_equal(verdict.mac, server_mac(key_, said, proof_, verdict));
  if (verdict.refusal != Refusal::kNone) {
    error_ = refused_by_peer(verdict.refusal, signed_by_server);
    return verdict.refusal;
  }

  Refusal refusal = Refusal::kNone;
  // An acceptance counts only if the server signed it; the MAC of our own proof, sent back, is a
  // reflection.
  if (!signed_by_server)
    refusal = verdict.mac == proof_.mac ? Refusal::kReflection : Refusal::kProof;
  else if (verdict.schema != proof_.schema)
    refusal = Refusal::kSchema;
  if (refusal != Refusal::kNone) {
    error_ = refusal_error(refusal);
    return refusal;
  }
  proven_ = outcome(key_, said, proof_, client_, target_.name);
  return Refusal::kNone;
}

}  // namespace retort::rpc::transport
