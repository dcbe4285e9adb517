#include "rpc/transport/proof_frames.h"

#include <cstring>

#include "base/error.h"
#include "rpc/transport/key_schedule.h"

namespace retort::rpc::transport {
namespace {

constexpr size_t kAddressBytes = 18;

// One list of fields per frame serves the size, the writing and the reading.
template <class Visitor>
void fields(Visitor& visit, ClientHello& hello) {
  visit.number(hello.purpose);
  visit.raw(hello.nonce, kKeyBytes);
  visit.text(hello.name, kMaxPeerNameBytes);
  visit.text(hello.target, kMaxPeerNameBytes);
  visit.raw(hello.run, kKeyBytes);
  visit.text(hello.credential, kMaxIdBytes);
  visit.text(hello.session, kMaxIdBytes);
  visit.raw(hello.local, kAddressBytes);
  visit.raw(hello.remote, kAddressBytes);
  visit.raw(hello.mac, kKeyBytes);
}

template <class Visitor>
void fields(Visitor& visit, ServerHello& hello) {
  visit.raw(hello.nonce, kKeyBytes);
  visit.text(hello.name, kMaxPeerNameBytes);
  visit.raw(hello.local, kAddressBytes);
  visit.raw(hello.remote, kAddressBytes);
}

template <class Visitor>
void fields(Visitor& visit, ClientProof& proof) {
  visit.raw(proof.mac, kKeyBytes);
  visit.raw(proof.schema, kKeyBytes);
}

template <class Visitor>
void fields(Visitor& visit, Verdict& verdict) {
  auto refusal = static_cast<uint8_t>(verdict.refusal);
  visit.number(refusal);
  if (refusal >= kNumRefusals) visit.reject();
  verdict.refusal = refusal < kNumRefusals ? static_cast<Refusal>(refusal) : Refusal::kFrame;
  visit.raw(verdict.mac, kKeyBytes);
  visit.raw(verdict.schema, kKeyBytes);
}

class Size {
 public:
  void number(uint8_t) { bytes_ += 1; }
  void raw(const std::string&, size_t size) { bytes_ += size; }
  void text(const std::string&, size_t max) { bytes_ += sizeof(uint16_t) + max; }
  void reject() {}
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

template <class Integer>
void append(std::string& bytes, Integer value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Writer {
 public:
  explicit Writer(std::string& bytes) : bytes_(bytes) {}
  void number(uint8_t value) { append(bytes_, value); }
  // A value that is not known is written as zeros: the MAC of a verdict for somebody who has proved
  // nothing.
  void raw(const std::string& value, size_t size) {
    RETORT_CHECK(value.empty() || value.size() == size) << value.size() << " instead of " << size;
    bytes_ += value;
    bytes_.append(size - value.size(), '\0');
  }
  void text(const std::string& value, size_t max) {
    RETORT_CHECK(value.size() <= max) << "a text of " << value.size() << " bytes";
    append(bytes_, static_cast<uint16_t>(value.size()));
    bytes_ += value;
    bytes_.append(max - value.size(), '\0');
  }
  void reject() {}

 private:
  std::string& bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  void number(uint8_t& value) {
    value = static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
  }
  void raw(std::string& value, size_t size) {
    value = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
  }
  void text(std::string& value, size_t max) {
    uint16_t size = 0;
    std::memcpy(&size, bytes_.data(), sizeof size);
    bytes_.remove_prefix(sizeof size);
    if (size > max) return reject();
    value = bytes_.substr(0, size);
    // One text has one form, so the padding is zeros.
    for (const char byte : bytes_.substr(size, max - size))
      if (byte != '\0') reject();
    bytes_.remove_prefix(max);
  }
  void reject() { bad_ = true; }
  bool finished() const { return !bad_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool bad_ = false;
};

template <class Frame>
size_t size_of() {
  Frame frame;
  Size size;
  fields(size, frame);
  return size.bytes();
}

template <class Frame>
std::string write(ProofFrame type, Frame frame) {
  std::string bytes;
  append(bytes, kProofMagic);
  append(bytes, kProofVersion);
  append(bytes, static_cast<uint16_t>(type));
  append(bytes, static_cast<uint16_t>(body_bytes(type)));
  Writer writer(bytes);
  fields(writer, frame);
  return bytes;
}

template <class Frame>
bool read(std::string_view body, Frame& frame) {
  if (body.size() != size_of<Frame>()) return false;
  Reader reader(body);
  fields(reader, frame);
  return reader.finished();
}

struct Header {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint16_t type = 0;
  uint16_t size = 0;
};
static_assert(sizeof(Header) == kProofHeaderBytes);

Header header_of(std::string_view bytes) {
  Header header;
  RETORT_CHECK(bytes.size() == kProofHeaderBytes);
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

}  // namespace

AddressBytes address_bytes(const Stream::Endpoint& endpoint) {
  const auto address = endpoint.address();
  const auto v6 = address.is_v4() ? boost::asio::ip::make_address_v6(boost::asio::ip::v4_mapped,
                                                                     address.to_v4())
                                  : address.to_v6();
  std::string bytes;
  for (const unsigned char byte : v6.to_bytes())
    bytes += static_cast<char>(byte);
  append(bytes, static_cast<uint16_t>(endpoint.port()));
  return bytes;
}

std::string to_bytes(const ClientHello& hello) { return write(ProofFrame::kClientHello, hello); }
std::string to_bytes(const ServerHello& hello) { return write(ProofFrame::kServerHello, hello); }
std::string to_bytes(const ClientProof& proof) { return write(ProofFrame::kClientProof, proof); }
std::string to_bytes(const Verdict& verdict) { return write(ProofFrame::kVerdict, verdict); }

size_t body_bytes(ProofFrame type) {
  switch (type) {
    case ProofFrame::kClientHello: return size_of<ClientHello>();
    case ProofFrame::kServerHello: return size_of<ServerHello>();
    case ProofFrame::kClientProof: return size_of<ClientProof>();
    case ProofFrame::kVerdict: return size_of<Verdict>();
  }
  return 0;
}

Refusal check_header(std::string_view bytes, ProofFrame expected) {
  const Header header = header_of(bytes);
  if (header.magic != kProofMagic) return Refusal::kGarbage;
  if (header.version != kProofVersion) return Refusal::kVersion;
  if (header.type != static_cast<uint16_t>(expected) || header.size != body_bytes(expected))
    return Refusal::kFrame;
  return Refusal::kNone;
}

bool is_verdict(std::string_view bytes) {
  return check_header(bytes, ProofFrame::kVerdict) == Refusal::kNone;
}

bool parse(std::string_view body, ClientHello& hello) {
  return read(body, hello) && !hello.name.empty() && !hello.target.empty();
}
bool parse(std::string_view body, ServerHello& hello) {
  return read(body, hello) && !hello.name.empty();
}
bool parse(std::string_view body, ClientProof& proof) { return read(body, proof); }
bool parse(std::string_view body, Verdict& verdict) { return read(body, verdict); }

}  // namespace retort::rpc::transport
