// TLS 1.3 with a pre-shared key of the run: no certificates, nothing to install. A handshake fails
// for everybody who does not know a secret of the run; the proof inside then says who it is.
#pragma once

#include <openssl/types.h>

#include <string>
#include <vector>

#include "rpc/transport/proof.h"

namespace retort::rpc::transport {

class TlsContext {
 public:
  // The first credential is used for connecting, any of them is accepted.
  explicit TlsContext(const std::vector<Credential>& credentials);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* native() const { return context_; }
  // The key of a credential for TLS, or null. Used by OpenSSL's callbacks.
  const std::string* key_of(std::string_view credential) const;
  const std::string& first_credential() const { return keys_.front().id; }

 private:
  std::vector<Credential> keys_;  // what is derived from the secrets
  SSL_CTX* context_ = nullptr;
};

}  // namespace retort::rpc::transport
