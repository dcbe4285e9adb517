#include "roles/generator/compatibility.h"

#include "base/error.h"

namespace retort::roles {

void check_matches(const GeneratorInfo& info, const ExpectedGenerator& student) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::kMismatch, what); };
  if (info.vocabulary_fingerprint != student.vocabulary_fingerprint)
    refuse("student and generator tokenizers differ; the generator must have the student's");
  if (info.parameters != student.parameters)
    refuse(
        "student and generator differ in the names, shapes or dtypes of their parameters, or in "
        "config values that change the function (rope_theta, rms_norm_eps, sliding_window, ...); " +
        std::string(student.adapter_alone
                        ? "the generator adds the student's adapter to its own model, so give both "
                          "the same model, dtype and roles.student.lora"
                        : "the generator takes over the student's weights, so give both the same "
                          "model and dtype"));
  if (info.base_weights != student.base_weights)
    refuse(
        "the generator's model has other weights than the student's, beside which the adapter that "
        "it is sent means nothing; give both the same files");
}

}  // namespace retort::roles
