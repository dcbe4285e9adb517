// What rpc.bind, rpc.port, rpc.advertise and rpc.encryption come to on this machine.
#pragma once

#include <memory>
#include <string>

#include "rpc/options.h"
#include "rpc/transport/listening_ports.h"
#include "rpc/transport/proof.h"
#include "rpc/transport/stream_factory.h"
#include "rpc/transport/tls_threads.h"

namespace retort::rpc::detail {

// The numeric address to listen at, of what choose_address() takes (base/network_interfaces.h) or
// of the name of a host, which is resolved here and now; auto: 127.0.0.1.
// kInvalidArgument for an address that means all interfaces; choose_address()'s, which list those
// of this host; kUnavailable for a name that does not resolve.
std::string resolve_bind(const std::string& bind);

// "0", "7000" or "7000-7100"; kInvalidArgument.
transport::PortRange parse_ports(const std::string& ports);

// True if connections at this host are under TLS. Decided by the text alone, so that both ends
// decide alike however a name resolves there: kAuto is plain for loopback addresses and
// "localhost".
bool encrypts(Encryption encryption, const std::string& host);
// The streams that follow from it. The identity has been validated. `threads`: of TlsContext.
transport::StreamFactory streams_for(const transport::Identity& identity, Encryption encryption,
                                     const std::string& host,
                                     std::shared_ptr<transport::TlsThreads> threads = nullptr);

// What to publish of "host:port", the address that is listened at. kInvalidArgument for an
// `advertise` that is neither host nor host:port.
std::string advertised(const std::string& advertise, const std::string& bound);

}  // namespace retort::rpc::detail
