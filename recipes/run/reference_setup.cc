#include "recipes/run/reference_setup.h"

#include "base/hash.h"
#include "recipes/run/role_connections.h"

namespace retort::recipes {
namespace {

parallel::Group* loss_group(RunContext& context) {
  return context.world.forms_loss() ? &context.world.tp() : nullptr;
}

}  // namespace

std::unique_ptr<Reference> make_reference(RunContext& context, const std::string& role,
                                          double temperature) {
  std::unique_ptr<roles::TeacherClient> client;
  if (context.world.asks_for_loss())
    client = connect_frozen_role(
        context, role, {.kind = roles::PayloadKind::kTargetLogProbs, .temperature = temperature});
  return std::make_unique<Reference>(std::move(client), loss_group(context));
}

std::unique_ptr<Reference> make_cached_reference(RunContext& context, const std::string& role,
                                                 const std::string& cache_folder) {
  // The others that form the loss get the values from the rank that asks, over their group.
  if (!context.world.asks_for_loss())
    return std::make_unique<Reference>(nullptr, loss_group(context));

  auto client = connect_frozen_role(context, role, {.kind = roles::PayloadKind::kTargetLogProbs},
                                    {.weights_fingerprint = true});
  const roles::TeacherInfo& info = client->info();
  const std::string fingerprint =
      sha256_hex(info.weights_fingerprint + info.dtype + info.vocabulary_fingerprint);
  const std::filesystem::path root =
      cache_folder.empty() ? context.cache() : std::filesystem::path(cache_folder);
  auto cache = std::make_unique<ReferenceCache>(root, fingerprint, context.rank.run_folder,
                                                context.world.rank());
  return std::make_unique<Reference>(std::move(client), loss_group(context), std::move(cache));
}

}  // namespace retort::recipes
