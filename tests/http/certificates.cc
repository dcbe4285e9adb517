#include "tests/http/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdint>

#include "base/error.h"

namespace retort::test {
namespace {

std::shared_ptr<EVP_PKEY> make_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

template <class Write>
std::string pem_of(Write write) {
  BIO* memory = BIO_new(BIO_s_mem());
  RETORT_CHECK(write(memory) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  const std::string text(data, static_cast<size_t>(size));
  BIO_free(memory);
  return text;
}

std::string pem_of_certificate(X509* certificate) {
  return pem_of([&](BIO* to) { return PEM_write_bio_X509(to, certificate); });
}

void add_extension(X509* certificate, int kind, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
  RETORT_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1) << value;
  X509_EXTENSION_free(extension);
}

// Unsigned, for this key.
std::shared_ptr<X509> make_certificate(EVP_PKEY* key, const std::string& name, long from, long to) {
  const std::shared_ptr<X509> certificate(X509_new(), X509_free);
  static long serial = 1;
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), to);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

Authority::Authority() : key_(make_key()) {
  certificate_ = make_certificate(
      key_.get(), "authority " + std::to_string(reinterpret_cast<uintptr_t>(key_.get())), -7200,
      7200);
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  add_extension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  RETORT_CHECK(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
}

std::string Authority::pem() const { return pem_of_certificate(certificate_.get()); }

Certificate Authority::issue(const CertificateOptions& options) const {
  const auto key = make_key();
  const auto certificate = make_certificate(key.get(), "server of a test",
                                            options.valid_from_seconds, options.valid_to_seconds);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  std::string names;
  for (const std::string& name : options.names)
    names += (names.empty() ? "" : ",") + name;
  add_extension(certificate.get(), NID_subject_alt_name, names);
  RETORT_CHECK(X509_sign(certificate.get(), key_.get(), EVP_sha256()) > 0);

  return {pem_of_certificate(certificate.get()), pem_of([&](BIO* to) {
            return PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace retort::test
