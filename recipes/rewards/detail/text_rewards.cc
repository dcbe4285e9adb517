// Rewards that compare texts or count.
#include <algorithm>

#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

constexpr size_t kQuotedBytes = 200;

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

class ExactMatch final : public Scorer {
 public:
  explicit ExactMatch(std::string name) : name_(std::move(name)) {}
  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores;
    for (const RewardInput& input : inputs) {
      require_reference(name_, input);
      scores.emplace_back(stripped(input.completion) == stripped(input.reference) ? 1.0 : 0.0);
    }
    return scores;
  }

 private:
  std::string name_;
};

class Length final : public Scorer {
 public:
  explicit Length(const RewardOptions& options)
      : min_(options.min.value_or(0)),
        max_(options.max),
        unit_(options.unit.value_or(LengthUnit::kTokens)) {}
  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores;
    for (const RewardInput& input : inputs) {
      const int64_t length =
          unit_ == LengthUnit::kTokens ? input.num_tokens : characters(input.completion);
      scores.emplace_back(length >= min_ && (!max_ || length <= *max_) ? 1.0 : 0.0);
    }
    return scores;
  }

 private:
  static int64_t characters(const std::string& text) {  // code points
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  }
  int64_t min_;
  std::optional<int64_t> max_;
  LengthUnit unit_;
};

}  // namespace

std::unique_ptr<Scorer> make_exact_match(std::string name) {
  return std::make_unique<ExactMatch>(std::move(name));
}
std::unique_ptr<Scorer> make_length(const RewardOptions& options) {
  return std::make_unique<Length>(options);
}

void require_reference(const std::string& name, const RewardInput& input) {
  if (stripped(input.reference).empty())
    fail(ErrorCode::kInvalidArgument, name,
         sample_name(input) +
             " has no reference to compare with; expected a column 'answer' or 'completion' (map "
             "it with `columns`)");
}

void fail(ErrorCode code, const std::string& name, const std::string& what) {
  throw Error(code, "reward '" + name + "': " + what);
}

std::string sample_name(const RewardInput& input) {
  return input.origin.empty() ? "the sample with the prompt " + excerpt(input.prompt)
                              : input.origin;
}

std::string excerpt(std::string_view text) {
  const bool cut = text.size() > kQuotedBytes;
  size_t length = std::min(text.size(), kQuotedBytes);
  // A cut inside a character would make text that is no UTF-8.
  while (cut && length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
    --length;
  std::string result = "'";
  for (const char c : text.substr(0, length))
    result += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
  return result + (cut ? "...'" : "'");
}

}  // namespace retort::rewards::detail
