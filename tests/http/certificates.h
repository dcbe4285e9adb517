// Certificates for servers of a test, made when it runs.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>
#include <vector>

namespace retort::test {

// Both as PEM.
struct Certificate {
  std::string chain;
  std::string key;
};

struct CertificateOptions {
  std::vector<std::string> names{"DNS:localhost", "IP:127.0.0.1"};  // as OpenSSL writes them
  long valid_from_seconds = -3600;                                  // from now
  long valid_to_seconds = 3600;
};

class Authority {
 public:
  Authority();
  std::string pem() const;  // what a client has to trust
  Certificate issue(const CertificateOptions& options = {}) const;

 private:
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> certificate_;
};

}  // namespace retort::test
