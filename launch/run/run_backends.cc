#include "launch/run/run_backends.h"

#include "base/error.h"
#include "launch/backends/local_run_backend.h"
#include "launch/kubernetes/run_backend.h"
#include "launch/slurm/run_backend.h"
#include "launch/ssh/run_backend.h"

namespace retort::launch {
namespace {

struct BackendMaker {
  recipes::Backend backend;
  std::unique_ptr<RunBackend> (*make)(const RunBackendOptions&);
};

template <class T>
std::unique_ptr<RunBackend> make_backend(const RunBackendOptions& options) {
  return std::make_unique<T>(options);
}

constexpr BackendMaker kBackendMakers[] = {
    {recipes::Backend::kLocal, &make_backend<LocalRunBackend>},
    {recipes::Backend::kSsh, &make_backend<SshRunBackend>},
    {recipes::Backend::kSlurm, &make_backend<SlurmRunBackend>},
    {recipes::Backend::kKubernetes, &make_backend<KubernetesRunBackend>},
};

}  // namespace

std::unique_ptr<RunBackend> make_run_backend(const RunBackendOptions& options) {
  for (const BackendMaker& maker : kBackendMakers)
    if (maker.backend == options.recipe.launch.backend) return maker.make(options);
  RETORT_CHECK(false) << "launch.backend has no class";
  return nullptr;
}

}  // namespace retort::launch
