// TLS as a client that trusts nobody by default.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <string>

namespace retort::http::detail {

using TlsSocket = boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>;

// From TLS 1.2 on. Trusts the authorities of the PEM file `ca_file`; empty: OpenSSL's own place for
// them (SSL_CERT_FILE moves it) or, where that has none, those of the known distributions.
// Errors: kInvalidArgument for a file that has no certificate.
std::unique_ptr<boost::asio::ssl::context> make_tls_context(const std::string& ca_file);

// Before the handshake: the server must prove that it is `host`, a name or an address, with a
// certificate that a trusted authority signed. `problem` gets what was wrong with one that is
// refused: "the certificate of 'a.example' has expired (...)"; it lives as long as the socket.
void expect_server(TlsSocket& socket, const std::string& host, std::string& problem);

}  // namespace retort::http::detail
