#include "models/lora/lora_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "base/error.h"

namespace retort::models {
namespace {

constexpr uint32_t kMaxPatternSteps = 1'000'000;
constexpr size_t kMaxPatternLength = 1000;

std::string pattern_message(int code) {
  char text[256] = "unknown error";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

PCRE2_SPTR pattern_bytes(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

[[noreturn]] void refuse_pattern(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "target_modules: the pattern " + what)
      .with("key", "target_modules");
}

}  // namespace

struct LoraPattern::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;

  Compiled() = default;
  Compiled(const Compiled&) = delete;
  ~Compiled() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

LoraPattern::LoraPattern(std::string pattern)
    : pattern_(std::move(pattern)), compiled_(std::make_unique<Compiled>()) {
  if (pattern_.size() > kMaxPatternLength)
    refuse_pattern("has " + std::to_string(pattern_.size()) + " characters; expected at most " +
                   std::to_string(kMaxPatternLength));

  int code = 0;
  PCRE2_SIZE at = 0;
  constexpr uint32_t kFlags = PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C;
  compiled_->code =
      pcre2_compile(pattern_bytes(pattern_), pattern_.size(), kFlags, &code, &at, nullptr);
  if (compiled_->code == nullptr)
    refuse_pattern("'" + pattern_ + "' is wrong at character " + std::to_string(at + 1) + ": " +
                   pattern_message(code));

  compiled_->match = pcre2_match_data_create(1, nullptr);
  compiled_->context = pcre2_match_context_create(nullptr);
  RETORT_CHECK(compiled_->match != nullptr && compiled_->context != nullptr) << "no memory";
  pcre2_set_match_limit(compiled_->context, kMaxPatternSteps);
}
LoraPattern::~LoraPattern() = default;

bool LoraPattern::matches(std::string_view name) const {
  const int found = pcre2_match(compiled_->code, pattern_bytes(name), name.size(), 0, 0,
                                compiled_->match, compiled_->context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    refuse_pattern("'" + pattern_ + "' cannot be decided on '" + std::string(name) +
                   "': " + pattern_message(found));
  return true;
}

}  // namespace retort::models
