#include "launch/version.h"

#include <ATen/Context.h>
#include <torch/headeronly/version.h>

namespace retort::launch {

std::string version_text() {
  std::string text = "retort " RETORT_VERSION "\nLibTorch " TORCH_VERSION "\nCUDA ";
  return text + (at::hasCUDA() ? "loaded" : "not loaded (this program computes on the CPU)");
}

}  // namespace retort::launch
