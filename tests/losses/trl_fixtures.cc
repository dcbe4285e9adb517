#include "tests/losses/trl_fixtures.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/source_folder.h"

namespace retort::losses {

TrlGoldens read_trl_goldens(const std::string& name_of_files) {
  const std::string path = (test::source_folder() / "tests/losses" / name_of_files).string();
  std::ifstream manifest(path + ".txt"), binary(path + ".bin", std::ios::binary);
  if (!manifest || !binary) throw std::runtime_error("no goldens at " + path);

  TrlGoldens goldens;
  for (std::string text; std::getline(manifest, text);) {
    std::istringstream line(text);
    std::string kind, name;
    line >> kind >> name;
    if (kind != "tensor") {
      TrlRecord record{kind, name, {}};
      for (std::string word; line >> word;)
        record.values[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
      goldens.records.push_back(record);
      continue;
    }
    int64_t offset = 0;
    line >> offset;
    std::vector<int64_t> shape;
    for (int64_t dim; line >> dim;)
      shape.push_back(dim);
    at::Tensor tensor = at::empty(shape, at::kFloat);
    binary.seekg(offset * 4);
    if (!binary.read(static_cast<char*>(tensor.data_ptr()), tensor.numel() * 4))
      throw std::runtime_error(path + ".bin is too short");
    goldens.tensors[name] = tensor;
  }
  return goldens;
}

std::vector<TrlRecord> TrlGoldens::of_kind(const std::string& kind) const {
  std::vector<TrlRecord> found;
  for (const TrlRecord& record : records)
    if (record.kind == kind) found.push_back(record);
  return found;
}

const TrlGoldens& trl_goldens() {
  static const TrlGoldens read = read_trl_goldens("trl_goldens");
  return read;
}

Packing::Packing(const at::Tensor& mask) : sequences(mask.size(0)), length(mask.size(1)) {
  index = mask.reshape({-1}).nonzero().squeeze(1);
  sequence = at::div(index, length, "floor");
  tokens = mask.sum(1).to(at::kFloat);
}
at::Tensor Packing::rows(const at::Tensor& padded) const {
  return padded.flatten(0, 1).index_select(0, index).contiguous();
}
at::Tensor Packing::sums(const at::Tensor& of_rows) const {
  return at::zeros({sequences}, of_rows.options().requires_grad(false))
      .index_add(0, sequence, of_rows);
}
at::Tensor Packing::padded(const at::Tensor& of_rows) const {
  std::vector<int64_t> shape = of_rows.sizes().vec();
  shape[0] = sequences * length;
  const at::Tensor flat =
      at::zeros(shape, of_rows.options().requires_grad(false)).index_copy(0, index, of_rows);
  shape[0] = length;
  shape.insert(shape.begin(), sequences);
  return flat.reshape(shape);
}

}  // namespace retort::losses
