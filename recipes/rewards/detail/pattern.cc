// Rewards by regular expression. PCRE2 with limits: a pattern that backtracks without end is an
// error, not a hang or an overflow.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;   // steps; about a second
constexpr uint32_t kHeapLimitKiB = 64 * 1024;  // of one match

std::string message_of(int code) {
  char text[256] = "unknown error";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

class Pattern final : public Scorer {
 public:
  Pattern(std::string name, const std::string& pattern, bool whole)
      : name_(std::move(name)), pattern_(pattern) {
    uint32_t flags = PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
    if (whole) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL;
    int code = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), flags,
                              &code, &at, nullptr));
    if (!code_)
      fail(ErrorCode::kInvalidArgument, name_,
           "the pattern " + excerpt(pattern) + " is wrong at character " + std::to_string(at + 1) +
               ": " + message_of(code));
    match_.reset(pcre2_match_data_create(1, nullptr));
    context_.reset(pcre2_match_context_create(nullptr));
    if (!match_ || !context_) fail(ErrorCode::kResourceExhausted, name_, "no memory for matching");
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKiB);
  }

  Scores score(const std::vector<RewardInput>& inputs) override {
    Scores scores;
    for (const RewardInput& input : inputs)
      scores.emplace_back(matches(input) ? 1.0 : 0.0);
    return scores;
  }

 private:
  bool matches(const RewardInput& input) const {
    const int found =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(input.completion.data()),
                    input.completion.size(), 0, 0, match_.get(), context_.get());
    if (found >= 0) return true;
    if (found == PCRE2_ERROR_NOMATCH) return false;
    fail(ErrorCode::kResourceExhausted, name_,
         "the pattern " + excerpt(pattern_) + " cannot be decided on the completion of " +
             sample_name(input) + " (" + std::to_string(input.completion.size()) +
             " bytes): " + message_of(found) +
             "; nested repetitions backtrack without end, use possessive ones (++, *+)");
  }

  template <auto Free>
  struct Deleter {
    template <class T>
    void operator()(T* object) const {
      Free(object);
    }
  };
  std::string name_, pattern_;
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code_;
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> match_;
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context_;
};

}  // namespace

std::unique_ptr<Scorer> make_pattern(std::string name, const std::string& pattern, bool whole) {
  return std::make_unique<Pattern>(std::move(name), pattern, whole);
}

}  // namespace retort::rewards::detail
