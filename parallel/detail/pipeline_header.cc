#include "parallel/detail/pipeline_header.h"

#include <c10/core/ScalarType.h>

#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/sizes.h"

namespace retort::parallel::detail {
namespace {

constexpr int64_t kMagic = 0x52705069;  // above the version
constexpr int64_t kVersion = 1;
constexpr int64_t kVersionBits = 16;
constexpr size_t kMaxDim = 2;

bool is_supported(at::ScalarType dtype) {
  return at::isFloatingType(dtype) || at::isIntegralType(dtype, /*includeBool=*/true);
}

bool is_dtype(int64_t code) {
  return code >= 0 && code < static_cast<int64_t>(at::ScalarType::Undefined) &&
         is_supported(static_cast<at::ScalarType>(code));
}

// True if the number of bytes of a tensor of these sizes fits 64 bits, whatever its dtype.
bool is_size(int64_t dim, int64_t size0, int64_t size1) {
  constexpr int64_t kMostBytesAnElement = 16;
  if (size0 < 0 || size1 < 0) return false;
  int64_t elements = 0;
  int64_t bytes = 0;
  return !__builtin_mul_overflow(size0, dim == 2 ? size1 : 1, &elements) &&
         !__builtin_mul_overflow(elements, kMostBytesAnElement, &bytes);
}

}  // namespace

std::string describe(at::ScalarType dtype, at::IntArrayRef sizes) {
  std::ostringstream text;
  text << c10::toString(dtype) << sizes;
  return text.str();
}

PipelineHeaderWords encode(const PipelineHeader& header) {
  if (header.sizes.size() > kMaxDim || !is_supported(header.dtype))
    throw Error(ErrorCode::kInvalidArgument,
                "a message between pipeline stages is a floating-point, integral or bool tensor of "
                "at most two dimensions, got " +
                    describe(header.dtype, header.sizes));
  PipelineHeaderWords words{kMagic << kVersionBits | kVersion,
                            static_cast<int64_t>(header.label.kind),
                            header.label.chunk,
                            header.label.micro_batch,
                            static_cast<int64_t>(header.dtype),
                            std::ssize(header.sizes),
                            0,
                            0};
  for (size_t d = 0; d < header.sizes.size(); ++d)
    words[6 + d] = header.sizes[d];
  return words;
}

PipelineHeader decode(const PipelineHeaderWords& words) {
  const auto [magic, kind, chunk, micro_batch, dtype, dim, size0, size1] = words;

  // Magic and version first: another version may mean anything by the other words.
  if (magic >> kVersionBits != kMagic)
    throw Error(ErrorCode::kCorrupt,
                "this is not the header of a message between pipeline stages; do the stages run "
                "the same program?");
  if (magic != (kMagic << kVersionBits | kVersion))
    throw Error(ErrorCode::kMismatch, "the other stage speaks version " +
                                          std::to_string(magic & ((1 << kVersionBits) - 1)) +
                                          " of the pipeline's messages, this one version " +
                                          std::to_string(kVersion) +
                                          "; run the same program on all stages");

  // The receiver makes room for what the header announces, so its numbers are checked first.
  const bool label_fits = kind >= 0 && kind <= 1 && chunk >= 0 && micro_batch >= 0;
  const bool dim_fits = dim >= 0 && dim <= to_int64(kMaxDim);
  if (!label_fits || !is_dtype(dtype) || !dim_fits || !is_size(dim, size0, size1)) {
    std::ostringstream text;
    for (int64_t word : words)
      text << ' ' << word;
    throw Error(ErrorCode::kCorrupt,
                "the header of a message between pipeline stages cannot be:" + text.str());
  }

  PipelineHeader header{{static_cast<PipelineAction::Kind>(kind), chunk, micro_batch},
                        static_cast<at::ScalarType>(dtype),
                        {size0, size1}};
  header.sizes.resize(to_size(dim));
  return header;
}

}  // namespace retort::parallel::detail
