#include "base/hash.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace retort {
namespace {

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  return bytes;
}

// FIPS 180-2, appendix B, and the empty message.
TEST(Sha256, StandardVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesMakeTheWhole) {
  Sha256 hash;
  hash.update("a");
  const std::array<std::byte, 2> rest{std::byte{'b'}, std::byte{'c'}};
  hash.update(std::span<const std::byte>(rest));
  Sha256 moved = std::move(hash);
  moved.update("");
  EXPECT_EQ(moved.hex_digest(), sha256_hex("abc"));
}

// RFC 4231, cases 1, 2 and 6.
TEST(HmacSha256, StandardVectors) {
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            from_hex("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            from_hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First"),
            from_hex("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));
}

TEST(ConstantTimeEqual, ComparesBytesAndLengths) {
  EXPECT_TRUE(constant_time_equal("", ""));
  EXPECT_TRUE(constant_time_equal(std::string_view("a\0b", 3), std::string_view("a\0b", 3)));
  EXPECT_FALSE(constant_time_equal(std::string_view("a\0b", 3), std::string_view("a\0c", 3)));
  EXPECT_FALSE(constant_time_equal("abc", "abcd"));
  EXPECT_FALSE(constant_time_equal("xbc", "abc"));
}

TEST(RandomHex, HasTheSizeAndDoesNotRepeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string text = random_hex(16);
    ASSERT_EQ(text.size(), 32u);
    ASSERT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos) << text;
    ASSERT_TRUE(seen.insert(text).second);
  }
  EXPECT_EQ(random_hex(0), "");
}

}  // namespace
}  // namespace retort
