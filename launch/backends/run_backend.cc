#include "launch/backends/run_backend.h"

#include "base/error.h"
#include "launch/backends/run_store.h"
#include "launch/process/shell_word.h"
#include "launch/run_folder/launcher_address.h"

namespace retort::launch {

void RunBackend::check_submit() const {
  throw Error(ErrorCode::kInvalidArgument, "--submit needs launch.backend: slurm; the recipe has " +
                                               std::string(enum_name(recipe().launch.backend)));
}

std::string RunBackend::dry_run(bool /*resume*/, bool /*overwrite*/) const {
  throw Error(ErrorCode::kInvalidArgument,
              "--dry-run prints what a cluster is told, with launch.backend: kubernetes; what "
              "this recipe would start is shown by: retort plan " +
                  shell_word(options_.recipe_file));
}

rpc::RendezvousAccess RunBackend::new_access() {
  return {.name = {},
          .run = new_run_id(run_folder_of(recipe())),
          .secret = run_secret(recipe()),
          .encryption = recipe().rpc.encryption};
}

std::unique_ptr<RunBackend::Start> RunBackend::attach(const RunFolder&, const RunStatus&,
                                                      SignalCatcher&) {
  RETORT_CHECK(can_be_attached()) << "a start whose processes nobody else can keep";
  return nullptr;
}

}  // namespace retort::launch
