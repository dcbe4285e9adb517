// The widths of vectors that this processor has, for tests of VectorKernels.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/generation/cpu_kernels/vector_kernels.h"

namespace retort::models {

inline std::vector<VectorWidth> widths_here() {
  std::vector<VectorWidth> here;
  for (const VectorWidth width : {VectorWidth::kPortable, VectorWidth::kAvx2, VectorWidth::kAvx512})
    if (kernels_of(width) != nullptr) here.push_back(width);
  return here;
}

inline std::string width_name(const testing::TestParamInfo<VectorWidth>& info) {
  switch (info.param) {
    case VectorWidth::kPortable: return "portable";
    case VectorWidth::kAvx2: return "avx2";
    case VectorWidth::kAvx512: return "avx512";
  }
  return "";
}

}  // namespace retort::models
