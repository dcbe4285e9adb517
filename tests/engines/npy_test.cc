// Arrays of NumPy: what numpy.save writes is read, and nothing else.
#include "engines/wire/npy.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/engines/npy_bytes.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

at::Tensor matrix_of(const std::string& bytes) {
  return read_npy_matrix({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

TEST(Npy, MatricesAreRead) {
  const std::vector<float> numbers{-1, -2.5F, -0.25F, -4, -5, -6};
  const at::Tensor matrix = matrix_of(test::npy_bytes(numbers, "(2, 3)"));
  EXPECT_TRUE(at::equal(matrix, at::tensor(numbers).view({2, 3})));
  EXPECT_EQ(matrix_of(test::npy_bytes({}, "(0, 3)")).sizes(), at::IntArrayRef({0, 3}));
}

TEST(Npy, WhatIsNoneIsCorrupt) {
  const std::vector<float> four{1, 2, 3, 4};
  const std::string good = test::npy_bytes(four, "(2, 2)");
  const auto corrupt = [](const std::string& part, const std::string& bytes) {
    SCOPED_TRACE(part);
    test::expect_error(ErrorCode::kCorrupt, part, [&] { matrix_of(bytes); });
  };
  corrupt("does not begin", "");
  corrupt("does not begin", "{\"shape\": [2, 2]}");
  corrupt("ends in its header", good.substr(0, 9));
  corrupt("ends in its header", good.substr(0, 40));
  corrupt("12 bytes follow", good.substr(0, good.size() - 4));
  corrupt("20 bytes follow", good + "more");
  corrupt("16 bytes follow", test::npy_bytes(four, "(4294967296, 4294967296)"));
  corrupt("no matrix", test::npy_bytes(four, "(4,)"));
  corrupt("no matrix", test::npy_bytes(four, "(1, 2, 2)"));
  corrupt("no matrix", test::npy_bytes(four, "(-2, -2)"));
  corrupt("<f8", test::npy_bytes(four, "(2, 2)", "<f8"));
  corrupt(">f4", test::npy_bytes(four, "(2, 2)", ">f4"));
  corrupt("column by column", test::npy_bytes(four, "(2, 2)", "<f4", "True"));
  std::string version = good;
  version[6] = 9;
  corrupt("version 9", version);
}

}  // namespace
}  // namespace retort::engines
