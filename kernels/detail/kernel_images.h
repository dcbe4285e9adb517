// The compiled kernels inside the CUDA module: what cmake/compile_kernels.py writes, and which of
// several images is for a card.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/error.h"

namespace retort::kernels::detail {

struct KernelImage {
  int architecture = 0;  // 90: compute capability 9.0
  bool is_ptx = false;   // else SASS
  const void* data = nullptr;
  size_t bytes = 0;
};

struct KernelFile {
  const char* source = "";
  std::span<const char* const> entries;  // the names of its kernels
  std::span<const KernelImage> images;
};

// In the file that cmake/compile_kernels.py writes.
std::span<const KernelFile> kernel_files();

// SASS runs on its own capability and on later ones with the same first number; PTX, which the
// driver compiles, on every later one. The nearest SASS, else the newest PTX, else null.
inline const KernelImage* choose_image(std::span<const KernelImage> images, int capability) {
  const KernelImage* best = nullptr;
  for (const KernelImage& image : images) {
    if (image.architecture > capability) continue;
    if (!image.is_ptx && image.architecture / 10 != capability / 10) continue;
    const bool is_better =
        best == nullptr || (best->is_ptx && !image.is_ptx) ||
        (best->is_ptx == image.is_ptx && best->architecture < image.architecture);
    if (is_better) best = &image;
  }
  return best;
}

// "sm_80, sm_90, PTX of compute_90"
inline std::string describe(std::span<const KernelImage> images) {
  std::string text;
  for (const KernelImage& image : images)
    text += (text.empty() ? "" : ", ") + std::string(image.is_ptx ? "PTX of compute_" : "sm_") +
            std::to_string(image.architecture);
  return text;
}

// What a card of this capability (75: 7.5) is told for which there is none, or none that its driver
// takes, which `why` says.
inline Error no_image(const KernelFile& file, int capability, const std::string& why) {
  return Error(ErrorCode::kUnavailable,
               "Retort's kernels do not run on this card, of compute capability " +
                   std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                   ": they were built for " + describe(file.images) + why)
      .with("kernels", file.source);
}

}  // namespace retort::kernels::detail
