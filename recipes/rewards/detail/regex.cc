#include "recipes/rewards/detail/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000;   // steps; about a second
constexpr uint32_t kHeapLimitKiB = 64 * 1024;  // of one match
constexpr uint32_t kPairs = 2;                 // the match and its first group

std::string message_of(int code) {
  char text[256] = "unknown error";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

size_t next_character(std::string_view text, size_t at) {
  do
    ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>> match;
  std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>> context;
};

Regex::Regex(std::string reward, std::string pattern, bool whole)
    : reward_(std::move(reward)),
      pattern_(std::move(pattern)),
      compiled_(std::make_unique<Compiled>()) {
  // A completion may hold bytes that are no UTF-8, which then match nothing. A pattern for the
  // whole completion must span its lines.
  uint32_t flags = PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (whole) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL;
  int code = 0;
  PCRE2_SIZE at = 0;
  compiled_->code.reset(
      pcre2_compile(bytes_of(pattern_), pattern_.size(), flags, &code, &at, nullptr));
  if (!compiled_->code)
    fail(ErrorCode::kInvalidArgument, reward_,
         "the pattern " + excerpt(pattern_) + " is wrong at character " + std::to_string(at + 1) +
             ": " + message_of(code));

  compiled_->match.reset(pcre2_match_data_create(kPairs, nullptr));
  compiled_->context.reset(pcre2_match_context_create(nullptr));
  if (!compiled_->match || !compiled_->context)
    fail(ErrorCode::kResourceExhausted, reward_, "no memory for matching");
  // Nested repetitions may backtrack without end on what a model writes. The limits make an error
  // of that.
  pcre2_set_match_limit(compiled_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(compiled_->context.get(), kHeapLimitKiB);
}
Regex::~Regex() = default;

int Regex::num_groups() const {
  uint32_t groups = 0;
  pcre2_pattern_info(compiled_->code.get(), PCRE2_INFO_CAPTURECOUNT, &groups);
  return static_cast<int>(groups);
}

std::optional<Regex::Place> Regex::find(std::string_view text, size_t from,
                                        const std::string& what) const {
  // A result of 0 means that it matched and has more groups than are asked for.
  const int found = pcre2_match(compiled_->code.get(), bytes_of(text), text.size(), from, 0,
                                compiled_->match.get(), compiled_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    fail(ErrorCode::kResourceExhausted, reward_,
         "the pattern " + excerpt(pattern_) + " cannot be decided on " + what + " (" +
             std::to_string(text.size()) + " bytes): " + message_of(found) +
             "; nested repetitions backtrack without end, use possessive ones (++, *+)");

  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(compiled_->match.get());
  Place place{.end = ends[1], .group = std::nullopt};
  const bool has_group = (found == 0 || found > 1) && ends[2] != PCRE2_UNSET;
  if (has_group) place.group = text.substr(ends[2], ends[3] - ends[2]);
  return place;
}

bool Regex::matches(std::string_view text, const std::string& what) const {
  return find(text, 0, what).has_value();
}

std::optional<std::string_view> Regex::find_last(std::string_view text,
                                                 const std::string& what) const {
  std::optional<Place> last;
  for (size_t from = 0; from <= text.size();) {
    const auto place = find(text, from, what);
    if (!place) break;
    last = place;
    // A match without characters would be found again at its own end for ever, so the search goes
    // on behind the next character.
    from = place->end > from ? place->end : next_character(text, from);
  }
  return last ? last->group : std::nullopt;
}

}  // namespace retort::rewards::detail
