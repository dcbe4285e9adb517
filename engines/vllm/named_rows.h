// Reads the answer of vLLM's /inference/v1/generate about ids that were named for each position.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/wire/base64.h"
#include "engines/wire/json_stream.h"

namespace retort::engines::vllm {

// {"prompt_token_id_logprobs": "<base64 of a .npy>", ...}: a float32 matrix with a row for each
// position from the first wanted one to the last, and a column for each id of its row, in their
// order. Other fields are passed over. Nothing in it repeats the prompt: that it is of this one,
// its number of rows says, and the probe what it means.
//
// Errors: kMismatch where the server says nothing of named ids, kCorrupt for what is no such matrix
//   and for numbers of wanted rows that are no log-probabilities; they name field, row and column.
// Memory: the matrix, twice at the end.
class NamedRows final : private JsonHandler {
 public:
  // request and width as named_question() accepts them; `width` of ids
  NamedRows(const ScoreRequest& request, int64_t width);

  void add(std::string_view piece) { reader_.add(piece); }
  // [R, N] of the wanted positions, once, when the answer was complete.
  at::Tensor take();

 private:
  void begin_object() override { enter("an object"); }
  void end_object() override { --depth_; }
  void begin_array() override { enter("an array"); }
  void end_array() override { --depth_; }
  void key(std::string_view name) override { key_.assign(name); }
  void string(std::string_view text) override;
  void string_piece(std::string_view text) override;
  void number(double value) override;
  void boolean(bool value) override { refuse_kind(value ? "true" : "false"); }
  void null() override {}  // as good as missing

  bool in_matrix() const;
  void enter(const std::string& kind);
  void refuse_kind(const std::string& kind) const;
  void check(const at::Tensor& wanted) const;

  const std::vector<int32_t> positions_;
  const int64_t width_;
  JsonReader reader_;
  int depth_ = 0;
  std::string key_;
  Base64Bytes matrix_;
  bool has_matrix_ = false;
};

}  // namespace retort::engines::vllm
