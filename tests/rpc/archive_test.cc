// The archive on good bytes and on every kind of bad ones.
#include "rpc/archive.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/random.h"
#include "rpc/detail/tensor_format.h"
#include "tests/rpc/failing_new.h"
#include "tests/support/thrown.h"

namespace retort::rpc {
namespace {

enum class Colour : uint8_t { kRed, kGreen };

}  // namespace
}  // namespace retort::rpc

template <>
struct retort::EnumNames<retort::rpc::Colour> {
  static constexpr std::array<std::pair<std::string_view, retort::rpc::Colour>, 2> values{
      {{"red", retort::rpc::Colour::kRed}, {"green", retort::rpc::Colour::kGreen}}};
};

namespace retort::rpc {
namespace {

using test::code_of;

enum class Free : int16_t { kSome = -3 };

struct Inner {
  std::string name;
  std::optional<double> weight;
  template <class A>
  void serialize(A& archive) {
    archive(name, weight);
  }
  bool operator==(const Inner&) const = default;
};

struct Everything {
  bool flag = false;
  int8_t small = 0;
  uint64_t large = 0;
  float single = 0;
  double twice = 0;
  Colour colour = Colour::kRed;
  Free free = Free::kSome;
  std::string text;
  std::vector<int32_t> numbers;
  std::vector<bool> bits;
  std::vector<Inner> inners;
  std::map<std::string, std::vector<int64_t>> table;
  std::optional<Inner> maybe;
  std::pair<int32_t, std::string> pair;
  std::array<uint16_t, 3> triple{};
  template <class A>
  void serialize(A& archive) {
    archive(flag, small, large, single, twice, colour, free, text, numbers, bits, inners, table,
            maybe, pair);
    archive(triple);
  }
  bool operator==(const Everything&) const = default;
};

struct Tensors {
  at::Tensor a, b;
  std::vector<at::Tensor> rest;
  int64_t step = 0;
  template <class A>
  void serialize(A& archive) {
    archive(a, step, b, rest);
  }
};

struct Tree {
  std::vector<Tree> children;
  template <class A>
  void serialize(A& archive) {
    archive(children);
  }
};

Everything sample() {
  return {true,
          -7,
          1ull << 63,
          1.5f,
          -2.25,
          Colour::kGreen,
          Free::kSome,
          std::string("a\0b", 3),
          {1, -2, 3},
          {true, false, true},
          {{"x", 0.5}, {"", std::nullopt}},
          {{"k", {1, 2}}, {"l", {}}},
          Inner{"y", 3.0},
          {4, "four"},
          {7, 8, 9}};
}

TEST(Archive, RoundTripsEveryType) {
  const Message message = encode(sample());
  EXPECT_TRUE(message.tensors.empty());
  EXPECT_EQ(decode<Everything>(message), sample());
  EXPECT_EQ(from_bytes<Everything>(to_bytes(sample())), sample());
}

// An element of a kilobyte in memory that is nine bytes on the wire, whose last is refused.
struct Wide {
  std::array<char, 1024> unsaid{};
  std::string text;
  bool flag = false;
  template <class A>
  void serialize(A& archive) {
    archive(text, flag);
  }
};

// What the schema does not show: a change here is one of kConventions (rpc/detail/wire_schema.cc).
TEST(Archive, BytesStayWhatTheyWere) {
  const std::string bytes = to_bytes(sample());
  EXPECT_EQ(bytes.size(), 201u);
  EXPECT_EQ(sha256_hex(bytes), "27d0394a6a711cb5089e02a6b18cf568dc5a409c6ccd735d72184aef3571033b");
}

TEST(Archive, EveryShorterPrefixIsCorrupt) {
  const std::string bytes = to_bytes(sample());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(code_of([&] { from_bytes<Everything>(std::string_view(bytes).substr(0, size)); }),
              ErrorCode::kCorrupt)
        << size;
}

TEST(Archive, LeftOversAreCorrupt) {
  EXPECT_EQ(code_of([] { from_bytes<Everything>(to_bytes(sample()) + "x"); }), ErrorCode::kCorrupt);
  Message message = encode(Tensors{at::ones({2}), {}, {}, 1});
  message.tensors.push_back(at::ones({1}));
  EXPECT_EQ(code_of([&] { decode<Tensors>(message); }), ErrorCode::kCorrupt);
  message.tensors.clear();
  EXPECT_EQ(code_of([&] { decode<Tensors>(message); }), ErrorCode::kCorrupt);
}

// A size far beyond the bytes must be refused before memory for it is taken; 2^60 elements would be
// std::bad_alloc or std::length_error, not Error(kCorrupt).
TEST(Archive, HugeSizesAreCorruptBeforeAllocation) {
  for (const uint64_t size :
       {uint64_t{1} << 60, ~uint64_t{0}, uint64_t{9}, (uint64_t{1} << 62) + 1}) {
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += "12345678";
    EXPECT_EQ(code_of([&] { from_bytes<std::string>(bytes); }), ErrorCode::kCorrupt);
    EXPECT_EQ(code_of([&] { from_bytes<std::vector<double>>(bytes); }), ErrorCode::kCorrupt);
    EXPECT_EQ(code_of([&] { from_bytes<std::vector<std::string>>(bytes); }), ErrorCode::kCorrupt);
    EXPECT_EQ(code_of([&] { from_bytes<std::vector<at::Tensor>>(bytes); }), ErrorCode::kCorrupt);
    EXPECT_EQ((code_of([&] { from_bytes<std::map<int64_t, int64_t>>(bytes); })),
              ErrorCode::kCorrupt);
  }
}

std::string size_before(uint64_t size, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + rest;
}

// As many bytes follow as a size says elements, so that the size alone does not refuse them: memory
// is taken for what the bytes can hold, not for what so many elements would be.
TEST(Archive, MemoryGrowsOnlyAsBytesAreRead) {
  constexpr size_t kBytes = 40'000;
  const std::string numbers = size_before(kBytes, std::string(kBytes, '\0'));
  const std::string refused = size_before(kBytes, std::string(kBytes, '\x02'));
  const std::string first_refused =
      size_before(kBytes, size_before(0, std::string("\x02", 1)) + std::string(kBytes, '\0'));
  const std::string long_text = size_before(1 << 20, "short");
  std::optional<ErrorCode> doubles, wides, flags, text;
  {
    testing::FailingNew failing(size_t{64} << 10);
    doubles = code_of([&] { from_bytes<std::vector<double>>(numbers); });
    wides = code_of([&] { from_bytes<std::vector<Wide>>(first_refused); });
    flags = code_of([&] { from_bytes<std::vector<std::optional<Wide>>>(refused); });
    text = code_of([&] { from_bytes<std::string>(long_text); });
  }
  EXPECT_EQ(doubles, ErrorCode::kCorrupt);
  EXPECT_EQ(wides, ErrorCode::kCorrupt);
  EXPECT_EQ(flags, ErrorCode::kCorrupt);
  EXPECT_EQ(text, ErrorCode::kCorrupt);
}

TEST(Archive, TensorLargerThanItsBytesIsCorruptBeforeAllocation) {
  const detail::TensorFormat huge{at::kFloat, {int64_t{1} << 50}};
  EXPECT_EQ(code_of([&] { from_bytes<at::Tensor>("\x01" + huge.to_bytes() + "12345678"); }),
            ErrorCode::kCorrupt);
}

// cereal's own way to read elements of more than a byte would take memory for all of them at once.
static_assert(!cereal::traits::is_input_serializable<cereal::BinaryData<double*>, InputArchive>());
static_assert(cereal::traits::is_input_serializable<cereal::BinaryData<char*>, InputArchive>());
static_assert(!cereal::traits::is_input_serializable<std::wstring, InputArchive>());

TEST(Archive, BadScalarsAreCorrupt) {
  EXPECT_EQ(code_of([] { from_bytes<bool>("\x02"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([] { from_bytes<Colour>("\x02"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(from_bytes<Colour>("\x01"), Colour::kGreen);
  std::vector<std::pair<int32_t, int32_t>> twice{{1, 2}, {1, 3}};
  EXPECT_EQ((code_of([&] { from_bytes<std::map<int32_t, int32_t>>(to_bytes(twice)); })),
            ErrorCode::kCorrupt);
  const std::vector<std::pair<int32_t, int32_t>> falling{{2, 0}, {1, 0}};
  EXPECT_EQ((code_of([&] { from_bytes<std::map<int32_t, int32_t>>(to_bytes(falling)); })),
            ErrorCode::kCorrupt);
}

TEST(Archive, NestingIsBounded) {
  const auto chain = [](int levels) {
    Tree tree;
    for (int i = 1; i < levels; ++i) {
      Tree parent;
      parent.children.push_back(std::move(tree));
      tree = std::move(parent);
    }
    return tree;
  };
  const auto fits = chain(kMaxNesting / 2);  // each Tree is a struct and a vector
  EXPECT_EQ(from_bytes<Tree>(to_bytes(fits)).children.size(), 1u);
  EXPECT_EQ(code_of([&] { to_bytes(chain(kMaxNesting / 2 + 1)); }), ErrorCode::kInvalidArgument);
  std::string bytes;  // a thousand levels by hand: sizes 1, 1, 1, ...
  const uint64_t one = 1;
  for (int i = 0; i < 1000; ++i)
    bytes.append(reinterpret_cast<const char*>(&one), sizeof one);
  bytes.append(sizeof one, '\0');  // the last has no children: nothing but the depth is wrong
  EXPECT_EQ(code_of([&] { from_bytes<Tree>(bytes); }), ErrorCode::kCorrupt);
}

TEST(Archive, TensorsTravelOutOfBand) {
  const auto base = at::arange(12, at::kFloat).reshape({3, 4});
  const Tensors value{
      base, {}, {base.t(), at::empty({0, 3}, at::kLong), at::scalar_tensor(2.5)}, 9};
  const Message message = encode(value);
  EXPECT_EQ(message.tensors.size(), 4u);
  EXPECT_LT(message.envelope.size(), 32u);
  EXPECT_EQ(message.tensors[0].const_data_ptr(), base.const_data_ptr())
      << "a dense tensor is shared, not copied";
  EXPECT_TRUE(message.tensors[1].is_contiguous());
  const auto back = decode<Tensors>(message);
  EXPECT_TRUE(at::equal(back.a, base));
  EXPECT_FALSE(back.b.defined());
  EXPECT_TRUE(at::equal(back.rest[0], base.t()));
  EXPECT_EQ(back.rest[1].sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(back.rest[2].dim(), 0);
  EXPECT_EQ(back.step, 9);
}

TEST(Archive, TensorsInsideBytes) {
  for (auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat,
                     at::kDouble, at::kBool, at::kBFloat16, at::kComplexFloat, at::kComplexDouble,
                     at::kUInt16, at::kUInt32, at::kUInt64}) {
    const auto tensor = at::arange(6, at::kFloat).reshape({2, 3}).to(dtype);
    const auto back = from_bytes<Tensors>(to_bytes(Tensors{tensor, at::empty({0}, dtype), {}, 1}));
    EXPECT_EQ(back.a.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(back.a.to(at::kComplexDouble), tensor.to(at::kComplexDouble)));
    EXPECT_EQ(back.b.numel(), 0);
  }
  const auto conjugate = at::complex(at::ones({2}), at::ones({2})).conj();
  EXPECT_TRUE(at::equal(from_bytes<Tensors>(to_bytes(Tensors{conjugate, {}, {}, 0})).a,
                        conjugate.resolve_conj()));
}

TEST(Archive, GradAndInferenceTensorsArriveOrdinary) {
  const auto leaf = at::ones({2, 2}).requires_grad_();
  const auto message = encode(Tensors{leaf.t() * 2, {}, {}, 0});
  EXPECT_FALSE(message.tensors[0].requires_grad());
  c10::InferenceMode inference;
  const auto back = from_bytes<Tensors>(to_bytes(Tensors{at::ones({3}), {}, {}, 0}));
  EXPECT_FALSE(back.a.is_inference());
}

TEST(Archive, WhatCannotTravelIsRefusedBySender) {
  EXPECT_EQ(code_of([] {
              encode(Tensors{at::eye(3).to_sparse(), {}, {}, 0});
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] {
              encode(Tensors{at::ones(std::vector<int64_t>(17, 1)), {}, {}, 0});
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] {
              to_bytes(Tensors{at::empty({2}, at::kMeta), {}, {}, 0});
            }),
            ErrorCode::kInvalidArgument);
}

// Random damage: each outcome is a value or Error(kCorrupt); anything else (another exception, a
// crash, a large allocation) fails.
TEST(Archive, SurvivesRandomDamage) {
  const std::string everything = to_bytes(sample());
  const std::string tensors =
      to_bytes(Tensors{at::ones({2, 3}), at::zeros({4}, at::kLong), {at::ones({1})}, 5});
  size_t refused = 0;
  for (uint64_t round = 0; round < 20000; ++round) {
    // Up to four times: the end is cut off, eight bytes are set, or one byte is changed.
    std::string bytes = round % 2 ? everything : tensors;
    for (uint64_t i = 0; i <= random_bits(1, round) % 4; ++i) {
      const uint64_t draw = random_bits(2, round, i);
      const size_t at = draw % bytes.size();
      if (draw >> 60 == 0)
        bytes.erase(at);
      else if (draw >> 60 < 4)
        std::fill(bytes.begin() + at, std::min(bytes.begin() + at + 8, bytes.end()), '\xff');
      else
        bytes[at] = static_cast<char>(draw >> 32);
      if (bytes.empty()) break;
    }

    try {
      if (round % 2)
        from_bytes<Everything>(bytes);
      else
        from_bytes<Tensors>(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000u);
}

}  // namespace
}  // namespace retort::rpc
