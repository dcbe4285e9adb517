// Decodes: a safetensors file as it is downloaded: the header's length and the header
//   (models/safetensors/header.h).
// Holds: every tensor of a file that is taken lies in the file and is as long as dtype and shape
//   need; none overlaps another.
#include "models/safetensors/header.h"

#include <vector>

#include "tests/fuzz/target_list.h"

namespace retort::fuzz::safetensors {
namespace {

using namespace models;

bool decode(std::string_view bytes) {
  const SafetensorsHeader header = parse_safetensors_header(bytes, "fuzz.safetensors");
  uint64_t total = 0;
  for (const auto& [name, entry] : header.tensors) {
    uint64_t size = c10::elementSize(entry.dtype);
    for (const int64_t dim : entry.shape)
      size *= static_cast<uint64_t>(dim);
    expect(entry.begin <= entry.end && entry.end <= bytes.size(), "a tensor outside the file");
    expect(entry.end - entry.begin == size, "a tensor of another size than its shape");
    total += size;
  }
  expect(total <= bytes.size(), "tensors overlap");
  return true;
}

std::vector<Seed> seeds() {
  const auto file = [](const std::vector<TensorInfo>& tensors) {
    const SafetensorsLayout layout(tensors);
    return layout.head() + std::string(layout.file_bytes() - layout.head().size(), 'x');
  };
  return {{"none", file({})},
          {"two", file({{"norm", at::kFloat, {3}}, {"embed", at::kBFloat16, {2, 4}}})},
          {"empty_tensor", file({{"none", at::kLong, {0, 5}}})}};
}

}  // namespace

Target target() { return {"safetensors", decode, seeds}; }

}  // namespace retort::fuzz::safetensors
