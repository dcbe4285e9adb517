#include "http/detail/tls.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/verify_context.hpp>
#include <filesystem>

#include "base/error.h"
#include "http/detail/quoted_text.h"

namespace retort::http::detail {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

constexpr const char* kKnownBundles[] = {
    "/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",              // SUSE
};
constexpr unsigned char kProtocols[] = "\x08http/1.1";

// An OpenSSL that was built elsewhere looks in a place that this machine may not have, so the known
// places are tried too.
void trust_system(ssl::context& context) {
  error_code error;
  context.set_default_verify_paths(error);
  const char* moved = std::getenv(X509_get_default_cert_file_env());
  if (moved != nullptr || std::filesystem::exists(X509_get_default_cert_file())) return;
  for (const char* bundle : kKnownBundles)
    if (std::filesystem::exists(bundle)) context.load_verify_file(bundle, error);
}

std::string text_of(const BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(const_cast<BIO*>(memory), &data);
  return {data, static_cast<size_t>(std::max(size, 0L))};
}

std::string date_of(const ASN1_TIME* time) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new(BIO_s_mem()), BIO_free);
  ASN1_TIME_print(text.get(), time);
  return text_of(text.get());
}

std::string subject_of(X509* certificate) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new(BIO_s_mem()), BIO_free);
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  return shown(text_of(text.get()));
}

// "a.example, *.b.example", as the certificate says for whom it is.
std::string names_of(X509* certificate) {
  const auto destroy = [](GENERAL_NAMES* names) { GENERAL_NAMES_free(names); };
  const std::unique_ptr<GENERAL_NAMES, decltype(destroy)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      destroy);
  std::string text;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> name(BIO_new(BIO_s_mem()), BIO_free);
    GENERAL_NAME_print(name.get(), sk_GENERAL_NAME_value(names.get(), i));
    text += (text.empty() ? "" : ", ") + text_of(name.get());
  }
  return shown(text);
}

std::string problem_of(X509_STORE_CTX* store, const std::string& host) {
  const int code = X509_STORE_CTX_get_error(store);
  X509* certificate = X509_STORE_CTX_get_current_cert(store);
  const std::string reason = X509_verify_cert_error_string(code);
  if (certificate == nullptr) return reason;
  const std::string whose = "the certificate of " + subject_of(certificate);

  switch (code) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return whose + " has expired (" + date_of(X509_get0_notAfter(certificate)) +
             "); renew it at the server";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return whose + " is not valid before " + date_of(X509_get0_notBefore(certificate)) +
             "; is this machine's clock right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return whose + " is for " + names_of(certificate) + ", not for '" + host +
             "'; write the address with a name that it has";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:  // another authority of the same name
      return whose + " is not signed by an authority that is trusted here (" + reason +
             "); name the PEM file of its authority as ca_file";
    default: return whose + " is refused: " + reason;
  }
}

}  // namespace

std::unique_ptr<ssl::context> make_tls_context(const std::string& ca_file) {
  auto context = std::make_unique<ssl::context>(ssl::context::tls_client);
  RETORT_CHECK(SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION) == 1);
  SSL_CTX_set_alpn_protos(context->native_handle(), kProtocols, sizeof kProtocols - 1);
  context->set_verify_mode(ssl::verify_peer);
  if (ca_file.empty()) {
    trust_system(*context);
    return context;
  }

  error_code error;
  context->load_verify_file(ca_file, error);
  if (error)
    throw Error(ErrorCode::kInvalidArgument,
                "ca_file " + ca_file + ": " + error.message() +
                    "; expected a PEM file with the certificates of authorities");
  return context;
}

void expect_server(TlsSocket& socket, const std::string& host, std::string& problem) {
  error_code error;
  boost::asio::ip::make_address(host, error);
  const bool is_name = static_cast<bool>(error);
  SSL* native = socket.native_handle();
  X509_VERIFY_PARAM* wanted = SSL_get0_param(native);
  // A name also goes into the handshake (SNI), where no address may stand: a server of many names
  // chooses its certificate by it.
  if (is_name) {
    X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    RETORT_CHECK(SSL_set_tlsext_host_name(native, host.c_str()) == 1 &&
                 X509_VERIFY_PARAM_set1_host(wanted, host.data(), host.size()) == 1);
  } else {
    RETORT_CHECK(X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1);
  }

  socket.set_verify_callback([host, &problem](bool trusted, ssl::verify_context& context) {
    if (!trusted && problem.empty()) problem = problem_of(context.native_handle(), host);
    return trusted;
  });
}

}  // namespace retort::http::detail
