#include "recipes/run/reference/reference_setup.h"

#include "base/hash.h"
#include "recipes/run/rank/role_connections.h"

namespace retort::recipes {
namespace {

parallel::Group* loss_group(RunContext& context) {
  return context.world.forms_loss() ? &context.world.tp() : nullptr;
}

// Names an engine by what it serves, and where.
std::string names_of(const engines::ExternalOptions& external) {
  std::string names = std::string(enum_name(external.engine)) + " " + external.served_model;
  for (const std::string& url : external.url)
    names += " " + url;
  return names;
}

}  // namespace

std::unique_ptr<Reference> make_reference(RunContext& context, const std::string& role,
                                          double temperature, int64_t num_ids) {
  // An engine's probabilities are over all ids that it has.
  if (context.recipe().roles.at(role).external) num_ids = 0;
  std::unique_ptr<roles::TeacherClient> client;
  if (context.world.asks_for_loss())
    client = connect_frozen_role(context, role,
                                 {.kind = roles::PayloadKind::kTargetLogProbs,
                                  .temperature = temperature,
                                  .common_vocab = num_ids});
  return std::make_unique<Reference>(std::move(client), loss_group(context));
}

std::unique_ptr<Reference> make_cached_reference(RunContext& context, const std::string& role,
                                                 const std::string& cache_folder) {
  // The others that form the loss get the values from the rank that asks, over their group.
  if (!context.world.asks_for_loss())
    return std::make_unique<Reference>(nullptr, loss_group(context));

  const auto& external = context.recipe().roles.at(role).external;
  auto client = connect_frozen_role(context, role, {.kind = roles::PayloadKind::kTargetLogProbs},
                                    {.weights_fingerprint = !external});
  const roles::TeacherInfo& info = client->info();
  // An engine does not say which weights it serves: its numbers stay with this run.
  const std::string model =
      external ? context.rank.run_folder.string() + names_of(*external) : info.weights_fingerprint;
  const std::string fingerprint = sha256_hex(model + info.dtype + info.vocabulary_fingerprint);
  const std::filesystem::path root =
      cache_folder.empty() ? context.cache() : std::filesystem::path(cache_folder);
  auto cache = std::make_unique<ReferenceCache>(root, fingerprint, context.rank.run_folder,
                                                context.world.rank());
  return std::make_unique<Reference>(std::move(client), loss_group(context), std::move(cache));
}

}  // namespace retort::recipes
