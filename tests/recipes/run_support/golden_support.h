// Comparing a run with what PyTorch computed for it: the files in tests/recipes/goldens that the
// make_*goldens.py beside that folder write.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

// goldens/<file>.json: case -> what its run must report.
nlohmann::json golden_cases(const std::string& file);

// Writes a case's recipe, whose $GOLDENS and $RUN stand for folders, beside its run folder; its
// path. The run goes to folder/run.
fs::path write_recipe_text(const fs::path& folder, std::string recipe);
// Launches it, with settings "key.path=value"; the run's folder. A run that fails is a failure of
// the test.
fs::path run_recipe_text(const fs::path& folder, std::string recipe,
                         const std::vector<std::string>& settings = {});

// Each value within 1e-5 of the wanted one, relative to it, or within `absolute`.
void expect_close(const std::vector<double>& got, const nlohmann::json& want,
                  const std::string& what, double absolute = 0);
// The metrics `keys` of the run against those of the golden, as expect_close.
void expect_columns(const fs::path& run, const nlohmann::json& golden,
                    const std::vector<std::string>& keys, double absolute);

// Every sample of the run, whichever rank of the student has it, is the golden's recorded one (its
// `samples`), and has the log-probability that PyTorch gives it at that step's weights.
void expect_recorded_samples(const fs::path& run, const nlohmann::json& golden);

// The parameters of run/final against those that `model` of goldens/ has after the case's changes,
// of goldens/<changes>.safetensors.
struct ParameterError {
  // 2-norm of the difference of all parameters as one vector, by the norm of the wanted ones
  double relative = 0;
  double largest = 0;  // of a single parameter
};
// Of the tensors in `got` against those in `start` and the golden changes of `name` in
// goldens/<changes>.safetensors. Both are a folder with a checkpoint, or a file.
ParameterError tensor_error(const fs::path& got, const fs::path& start, const std::string& changes,
                            const std::string& name);
// The same of a run's last checkpoint and the golden model that it began with.
ParameterError parameter_error(const fs::path& run, const std::string& model,
                               const std::string& changes, const std::string& name);
// At most 1e-5, and 0.05 of the learning rate 1e-3.
void expect_same_parameters(const fs::path& run, const std::string& model,
                            const std::string& changes, const std::string& name);

}  // namespace retort::test
