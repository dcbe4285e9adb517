// The frames of a proof: one size each, one form each.
#include "rpc/transport/proof_frames.h"

#include <gtest/gtest.h>

#include "rpc/transport/proof.h"
#include "tests/rpc/transport/node.h"

namespace retort::rpc::transport::testing {
namespace {

TEST(ProofFrames, HeadersAreChecked) {
  const std::string hello = to_bytes(ServerHello{.name = "teacher/0"});
  const std::string header = hello.substr(0, kProofHeaderBytes);
  EXPECT_EQ(hello.size(), kProofHeaderBytes + body_bytes(ProofFrame::kServerHello));
  EXPECT_EQ(check_header(header, ProofFrame::kServerHello), Refusal::kNone);
  EXPECT_EQ(check_header(header, ProofFrame::kClientHello), Refusal::kFrame);
  EXPECT_EQ(check_header("GET / HTTP/1.1\r\n", ProofFrame::kClientHello), Refusal::kGarbage);

  std::string version = header, size = header;
  version[8] = 99;
  size[14] = 1;
  EXPECT_EQ(check_header(version, ProofFrame::kServerHello), Refusal::kVersion);
  EXPECT_EQ(check_header(size, ProofFrame::kServerHello), Refusal::kFrame);
}

TEST(ProofFrames, TextsHaveOneForm) {
  const std::string frame = to_bytes(ServerHello{.name = "teacher/0"}).substr(kProofHeaderBytes);
  ServerHello hello;
  ASSERT_TRUE(parse(frame, hello));
  EXPECT_EQ(hello.name, "teacher/0");
  EXPECT_FALSE(parse(frame.substr(1), hello));
  EXPECT_FALSE(parse(frame + '\0', hello));
  std::string padded = frame, longer = frame;
  padded[32 + 2 + 100] = 'x';
  longer[32] = '\xff';
  longer[33] = '\xff';
  EXPECT_FALSE(parse(padded, hello)) << "bytes behind the text";
  EXPECT_FALSE(parse(longer, hello)) << "a length above the field";
}

TEST(Identities, AreValidated) {
  const auto code = [](Identity identity) {
    try {
      identity.validate();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kClosed;
  };
  EXPECT_EQ(code(identity_of("a/0")), ErrorCode::kClosed);
  EXPECT_EQ(code(identity_of("")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(identity_of(std::string(257, 'n'))), ErrorCode::kInvalidArgument);
  auto identity = identity_of("a/0");
  identity.credentials.clear();
  EXPECT_EQ(code(identity), ErrorCode::kInvalidArgument);
  identity.credentials = {{"", "x"}};
  EXPECT_EQ(code(identity), ErrorCode::kInvalidArgument);
  identity.credentials = {{"x", ""}};
  EXPECT_EQ(code(identity), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort::rpc::transport::testing
