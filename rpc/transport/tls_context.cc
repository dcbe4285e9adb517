#include "rpc/transport/tls_context.h"

#include <openssl/ssl.h>

#include <utility>

#include "base/error.h"
#include "rpc/transport/key_schedule.h"

namespace retort::rpc::transport {
namespace {

constexpr unsigned char kCipherSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr unsigned char kIdContext[] = {'r', 'e', 't', 'o', 'r', 't'};
constexpr size_t kReadBufferBytes = 256 << 10;

int context_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

const TlsContext& context_of(SSL* ssl) {
  return *static_cast<const TlsContext*>(
      SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), context_index()));
}

// A pre-shared key of TLS 1.3 is an SSL_SESSION made by hand. With SSL_VERIFY_PEER OpenSSL wants
// the same id context in the session and in the context.
SSL_SESSION* session_of(SSL* ssl, const std::string& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  RETORT_CHECK(session != nullptr &&
               SSL_SESSION_set1_master_key(
                   session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
               SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipherSuite)) == 1 &&
               SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
               SSL_SESSION_set1_id_context(session, kIdContext, sizeof kIdContext) == 1);
  return session;
}

int use_session(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_bytes,
                SSL_SESSION** session) {
  const TlsContext& context = context_of(ssl);
  const std::string& name = context.first_credential();
  *id = reinterpret_cast<const unsigned char*>(name.data());
  *id_bytes = name.size();
  *session = session_of(ssl, *context.key_of(name));
  return 1;
}

int find_session(SSL* ssl, const unsigned char* id, size_t id_bytes, SSL_SESSION** session) {
  const auto* key =
      context_of(ssl).key_of(std::string_view(reinterpret_cast<const char*>(id), id_bytes));
  *session = key != nullptr ? session_of(ssl, *key) : nullptr;
  return 1;
}

}  // namespace

TlsContext::TlsContext(const std::vector<Credential>& credentials,
                       std::shared_ptr<TlsThreads> threads)
    : threads_(std::move(threads)) {
  RETORT_CHECK(!credentials.empty());
  for (const auto& credential : credentials)
    keys_.push_back({credential.id, derive_key(credential.secret, "retort tls", "pre-shared key")});

  context_ = SSL_CTX_new(TLS_method());
  RETORT_CHECK(context_ != nullptr &&
               SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1 &&
               SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256") == 1 &&
               SSL_CTX_set_session_id_context(context_, kIdContext, sizeof kIdContext) == 1 &&
               SSL_CTX_set_num_tickets(context_, 0) == 1);
  SSL_CTX_set_ex_data(context_, context_index(), this);

  // There are no certificates: without the key no handshake succeeds on either side.
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_psk_use_session_callback(context_, use_session);
  SSL_CTX_set_psk_find_session_callback(context_, find_session);

  // Reading ahead takes many records with one call of the system; a partial write lets a transfer
  // stop where the socket is full.
  SSL_CTX_set_read_ahead(context_, 1);
  SSL_CTX_set_default_read_buffer_len(context_, kReadBufferBytes);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_options(context_, SSL_OP_ENABLE_KTLS);  // where the kernel has it
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

const std::string* TlsContext::key_of(std::string_view credential) const {
  for (const auto& key : keys_)
    if (key.id == credential) return &key.secret;
  return nullptr;
}

}  // namespace retort::rpc::transport
