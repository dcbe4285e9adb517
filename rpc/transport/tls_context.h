// TLS 1.3 with a pre-shared key of the run: no certificates, nothing to install. A handshake fails
// for everybody who does not know a secret of the run; the proof inside then says who it is. All
// streams of an agent share one: its keys, and its threads for large transfers.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>
#include <vector>

#include "rpc/transport/proof.h"
#include "rpc/transport/tls_threads.h"

namespace retort::rpc::transport {

class TlsContext {
 public:
  // The first credential is used for connecting, any of them is accepted. No `threads`: all of TLS
  // is done on the loop thread, as suits connections that carry small frames alone.
  explicit TlsContext(const std::vector<Credential>& credentials,
                      std::shared_ptr<TlsThreads> threads = nullptr);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* native() const { return context_; }
  TlsThreads* threads() const { return threads_.get(); }
  // The key of a credential for TLS, or null. Used by OpenSSL's callbacks.
  const std::string* key_of(std::string_view credential) const;
  const std::string& first_credential() const { return keys_.front().id; }

 private:
  const std::shared_ptr<TlsThreads> threads_;
  std::vector<Credential> keys_;  // what is derived from the secrets
  SSL_CTX* context_ = nullptr;
};

}  // namespace retort::rpc::transport
