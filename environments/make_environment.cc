#include "environments/make_environment.h"

#include "environments/command_environment.h"
#include "environments/url_environment.h"

namespace retort::environments {

std::unique_ptr<roles::Environment> make_environment(const std::string& name,
                                                     const EnvironmentOptions& options,
                                                     Duration timeout) {
  options.validate();
  if (options.url.empty()) return std::make_unique<CommandEnvironment>(name, options, timeout);
  return std::make_unique<UrlEnvironment>(name, options, timeout);
}

}  // namespace retort::environments
