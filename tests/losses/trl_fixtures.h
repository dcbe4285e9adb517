// What make_trl_goldens.py and make_uld_goldens.py wrote, and padded batches as packed rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/options.h"

namespace retort::losses {

struct TrlRecord {
  std::string kind, name;
  std::map<std::string, std::string> values;

  bool has(const std::string& key) const { return values.count(key) > 0; }
  const std::string& text(const std::string& key) const { return values.at(key); }
  double number(const std::string& key) const { return std::stod(values.at(key)); }
};

struct TrlGoldens {
  std::map<std::string, at::Tensor> tensors;  // float32
  std::vector<TrlRecord> records;

  const at::Tensor& tensor(const std::string& name) const { return tensors.at(name); }
  std::vector<TrlRecord> of_kind(const std::string& kind) const;
};
// Reads <name>.txt and <name>.bin beside this file.
TrlGoldens read_trl_goldens(const std::string& name);
// Those of trl_goldens, read once.
const TrlGoldens& trl_goldens();

// The positions of [B, L] where mask is 1, in order.
struct Packing {
  explicit Packing(const at::Tensor& mask);
  at::Tensor rows(const at::Tensor& padded) const;     // [B, L, ...] -> [R, ...]
  at::Tensor sums(const at::Tensor& of_rows) const;    // [R] -> [B], with autograd
  at::Tensor padded(const at::Tensor& of_rows) const;  // [R, ...] -> [B, L, ...], zeros elsewhere
  int64_t count() const { return index.size(0); }
  int64_t sequences = 0, length = 0;
  at::Tensor index;     // [R] int64 into B * L
  at::Tensor sequence;  // [R] int64
  at::Tensor tokens;    // [B] float32
};

}  // namespace retort::losses
