// The proof that opens every connection: both ends show that they know the run's secret (control,
// supervision) or the session's key (data), on this very connection, for this purpose. Here are the
// rules alone, without a socket: bytes in, bytes out. handshake.h runs them over a stream.
//
// What the MACs cover: protocol version, purpose, both nonces, both names, the run, the name of the
//   secret, the session, the addresses as each end sees them, the TLS channel if there is one. The
//   two sides use different keys for their MACs, so nothing can be sent back. All keys follow from
//   the secret and the run together: two runs of one secret are strangers to each other.
// The hello has a MAC of its own, over all that the client knows by then: whoever does not know the
//   secret is refused at his first frame, and holds no place. A hello that is said again is refused
//   by its nonce, for as long as that is remembered, and by its addresses.
// What follows from it: the key and the id of a session, which both ends then have and nobody else.
// Errors: a refused proof ends with a Refusal. The client proves first; until then a server says
//   nothing but its name and address, and the reason of a refusal.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "rpc/transport/proof_frames.h"
#include "rpc/transport/refusal.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

// A secret and the name by which a proof says which one it uses, so that a run can change its
// secret while old connections live.
struct Credential {
  std::string id;
  std::string secret;
};

// Who this process is, and what it accepts as its own kind.
struct Identity {
  std::string name;                     // "teacher/0"
  std::string run;                      // the run's id; a secret may serve several runs
  std::string schema;                   // what two processes must have in common: any text
  std::vector<Credential> credentials;  // of the run; the first one is used for dialing
  // Of a server: another id, by which processes come that have not been told the run's yet. Empty:
  // nobody does.
  std::string meeting;
  // Refuses a connection whose ends see different addresses. False where an address translator
  // stands between the hosts; then a relay is kept out by TLS alone.
  bool compare_addresses = true;

  // kInvalidArgument, naming the field.
  void validate() const;
};

// The facts of a connection that a proof is bound to.
struct ConnectionFacts {
  Stream::Endpoint local, remote;
  std::string channel_binding;
};

// A session that data connections may belong to.
struct SessionKey {
  std::string key;
  std::string peer;  // the name of the other end
};

// What a proof gives.
struct Proven {
  Purpose purpose = Purpose::kControl;
  std::string peer;
  std::string session;     // data: the one it belongs to; else: the id of the new session
  std::string key;         // data: of this connection; else: the key of the new session
  std::string credential;  // the secret of the run that was proved; data: empty
};

// The key that a proof of the run's secret is made with.
std::string run_key(const std::string& secret, const std::string& run);
// Of a hello, whose own `mac` does not count, on this connection; `key`: of the run or the session.
std::string hello_mac(const std::string& key, const ClientHello& hello,
                      const ConnectionFacts& facts);

// The nonces of recent hellos of those who know the secret: one that comes twice is refused as
// such. An older one gets no further than its hello, because its proof does not fit the server's
// nonce.
class NonceMemory {
 public:
  bool knows(const std::string& nonce) const { return nonces_.count(nonce) > 0; }
  void remember(const std::string& nonce);

 private:
  std::unordered_set<std::string> nonces_;
  std::deque<std::string> order_;
};

// Bytes to send, and whether that was the end. After a refusal `send` may hold a verdict.
struct ProofStep {
  std::string send;
  Refusal refusal = Refusal::kNone;
};

// What a server needs beside its identity. `find_session` may be null: no data connections.
struct ServerPolicy {
  bool control = true;
  bool supervision = false;
  std::function<std::optional<SessionKey>(const std::string& session)> find_session;
  NonceMemory* nonces = nullptr;
};

class ServerRules {
 public:
  // The identity and the policy outlive the proof.
  ServerRules(const Identity& identity, const ServerPolicy& policy, ConnectionFacts facts);

  ProofStep on_client_hello(std::string_view body);
  ProofStep on_client_proof(std::string_view body);
  // What to send for a frame that did not get so far.
  static std::string refusal_bytes(Refusal refusal);
  const Proven& proven() const { return proven_; }

 private:
  Refusal check_hello();

  const Identity& identity_;
  const ServerPolicy& policy_;
  const ConnectionFacts facts_;
  ClientHello client_;
  ServerHello server_;
  std::string key_;  // what is to be proved
  Proven proven_;
};

// What a client wants to reach.
struct ProofTarget {
  std::string name;  // "teacher/0"
  Purpose purpose = Purpose::kControl;
  // Of a data connection.
  std::string session;
  std::string session_key;
};

class ClientRules {
 public:
  // The identity outlives the proof.
  ClientRules(const Identity& identity, ProofTarget target, ConnectionFacts facts);

  std::string hello() const { return to_bytes(client_); }
  ProofStep on_server_hello(std::string_view body);
  // kNone: proven() is valid. Otherwise error() says whose refusal it is.
  Refusal on_verdict(std::string_view body);
  const Error& error() const { return error_; }
  const Proven& proven() const { return proven_; }

 private:
  const Identity& identity_;
  const ProofTarget target_;
  const ConnectionFacts facts_;
  std::string key_;
  ClientHello client_;
  ServerHello server_;
  ClientProof proof_;
  Error error_;
  Proven proven_;
};

}  // namespace retort::rpc::transport
