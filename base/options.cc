#include "base/options.h"

#include <numeric>

namespace retort {
namespace {

// Levenshtein's distance, with one row of its table at a time.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

// Letters count as one whether they are large or small: SFT is near to sft.
std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return lower;
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string lower = lower_case(word);
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const auto candidate : candidates) {
    const size_t distance = edit_distance(lower, lower_case(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string choices_text(std::span<const std::string_view> choices) {
  std::string text;
  for (const std::string_view choice : choices)
    text += (text.empty() ? "" : " | ") + std::string(choice);
  return text;
}

void check_choice(std::string_view text, std::span<const std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return;
  const std::string nearest = nearest_name(text, choices);
  throw Error(ErrorCode::kInvalidArgument,
              "'" + std::string(text) + "' is not one of " + choices_text(choices) +
                  (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
}

}  // namespace retort
