#include "base/log.h"
#include "launch/ranks/serving_roles.h"
#include "parallel/world.h"

namespace retort::launch {

void publish_address(const recipes::RankContext& context, const std::string& address) {
  parallel::StoreClient store(context.store_host, context.store_port,
                              context.store_prefix(context.role),
                              context.recipe.launch.collective_timeout, context.connect_store);
  store.set("address/" + std::to_string(context.rank), address);
  RETORT_LOG(kInfo) << "serving " << context.role_options().model << " at " << address;
}

}  // namespace retort::launch
