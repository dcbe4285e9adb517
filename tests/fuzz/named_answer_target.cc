// Decodes: vLLM's answer about ids that were named for each position (engines/vllm/named_rows.h),
//   and the array in it alone (engines/wire/npy.h). The first byte says which of the two follows.
// Holds: what is taken are log-probabilities of the positions and ids that were asked for; an array
//   has as many numbers as its shape says. Errors stay short.
#include <cmath>

#include "base/error.h"
#include "engines/vllm/named_rows.h"
#include "engines/wire/npy.h"
#include "tests/engines/npy_bytes.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::named_answer {
namespace {

constexpr size_t kLongestError = 4096;

bool decode_array(std::string_view bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const at::Tensor matrix = engines::read_npy_matrix({data, bytes.size()});
  expect(matrix.dim() == 2 && matrix.scalar_type() == at::kFloat, "no matrix of float32");
  expect(matrix.nbytes() <= bytes.size(), "more numbers than bytes came");
  return true;
}

// Positions 1 and 3 of a prompt, two ids each: three rows come.
bool decode_answer(std::string_view bytes) {
  engines::ScoreRequest request;
  request.positions = {1, 3};
  engines::vllm::NamedRows reader(request, 2);
  for (size_t at = 0; at < bytes.size(); at += 7)  // as it may arrive
    reader.add(bytes.substr(at, 7));
  const at::Tensor wanted = reader.take();
  expect(wanted.sizes() == at::IntArrayRef({2, 2}), "another shape");
  const auto* value = wanted.const_data_ptr<float>();
  for (int64_t i = 0; i < wanted.numel(); ++i)
    expect(std::isfinite(value[i]) && value[i] < 1, "no log-probability");
  return true;
}

bool decode(std::string_view bytes) {
  if (bytes.empty()) return false;
  try {
    return bytes[0] == 'a' ? decode_array(bytes.substr(1)) : decode_answer(bytes.substr(1));
  } catch (const Error& error) {
    expect(error.message().size() < kLongestError, "an error that quotes all it was given");
    throw;
  }
}

std::vector<Seed> seeds() {
  const std::string array =
      test::npy_bytes({-1.5F, -0.25F, -9999.0F, -3.0F, -0.125F, -2.0F}, "(3, 2)");
  const std::string answer =
      R"({"request_id": "r", "choices": [{"index": 0}], "prompt_token_id_logprobs": ")" +
      test::base64_text(array) + R"("})";
  return {{"array", "a" + array}, {"answer", "j" + answer}};
}

}  // namespace

Target target() { return {"named_answer", decode, seeds}; }

}  // namespace retort::fuzz::named_answer
