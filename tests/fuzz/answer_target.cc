// Decodes: the final answers of two texts of a model, the first as long as the first byte says.
// Holds: a text that has an answer has its own; whose answer is the reference makes no difference;
//   a text without an answer has nobody's.
#include "recipes/data/answer.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::answer {
namespace {

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const std::string_view first = source.text();
  const std::string_view second = source.rest();
  const bool has = data::has_answer(first);
  const bool same = data::same_answer(first, second);
  expect(data::same_answer(first, first) == has, "an answer that is not its own");
  expect(data::same_answer(second, first) == same, "an answer that depends on the order");
  expect(!same || (has && data::has_answer(second)), "an answer that is none");
  return same;
}

std::vector<Seed> seeds() {
  const auto seed = [](std::string_view first, std::string_view second) {
    return ByteSink().text(first).raw(second).bytes();
  };
  return {{"mark", seed("2 + 3 = 5 #### 5", "5.0")},
          {"fraction", seed("\\boxed{-3\\frac{1}{2}}", "-3 1/2")},
          {"power", seed("1.5 \\times 10^{-3}", "1.5e-3")},
          {"root", seed("\\boxed{2\\sqrt{3} \\text{ cm}^2}", "\\sqrt{12}")},
          {"tuple", seed("(1, -\xe2\x88\x9e, [2, 3))", "(1, -\\infty, [2,3))")},
          {"set", seed("\\{1, 2{,}000\\}", "\\{2000, 1\\}")},
          {"time", seed("at 12:30 pm", "12:30 p.m.")},
          {"money", seed("it is **\\$1,234.50**!", "1234.5 dollars")},
          {"written", seed("\\boxed{x + 3}", "\\boxed{x+3}")}};
}

}  // namespace

Target target() { return {"answer", decode, seeds}; }

}  // namespace retort::fuzz::answer
