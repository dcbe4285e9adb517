#include "recipes/run/rows/row_warnings.h"

#include <cstdio>

#include "models/config/config.h"

namespace retort::recipes {

std::optional<std::string> prompts_differ(const data::RowSet::ReadRows& rows) {
  if (rows.num_prompts_differ == 0) return std::nullopt;
  return "in " + std::to_string(rows.num_prompts_differ) + " of " + std::to_string(rows.num_rows) +
         " rows (the first: " + rows.first_that_differs +
         ") the prompt alone ends in other tokens than before its completion, as a token spans the "
         "boundary or the chat template renders a prompt otherwise: what is drawn begins from "
         "tokens that training does not show; end the prompt where a token ends (no space at its "
         "end), or use a template that renders both alike";
}

std::optional<std::string> beyond_positions(int64_t tokens, const std::string& origin,
                                            int64_t limit) {
  if (limit <= 0 || tokens <= limit) return std::nullopt;
  return "the longest sequence has " + std::to_string(tokens) + " tokens (" + origin +
         "), and the student's model was made for " + std::to_string(limit) +
         " (max_position_embeddings in its config.json): what is beyond has positions that it "
         "has not seen; lower data.max_length, or set its rope scaling";
}

std::vector<std::string> row_warnings(const data::RowSet& set, int64_t limit) {
  const data::RowSet::ReadRows rows = set.read_rows();
  const int64_t longest = std::min(rows.longest, set.max_length());
  std::vector<std::string> warnings;
  if (const auto warning = prompts_differ(rows)) warnings.push_back(*warning);
  if (const auto warning = beyond_positions(longest, rows.longest_origin, limit))
    warnings.push_back(*warning);
  return warnings;
}

void print_row_warnings(const data::RowSet& rows, const std::string& student_model) {
  const int64_t limit = models::read_model_config(student_model).max_position_embeddings;
  for (const std::string& warning : row_warnings(rows, limit))
    std::printf("--- warning: %s\n", warning.c_str());
}

}  // namespace retort::recipes
