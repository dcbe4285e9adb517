// The environment that a role's options describe.
#pragma once

#include <memory>
#include <string>

#include "base/units.h"
#include "environments/options.h"
#include "roles/environment/environment.h"

namespace retort::environments {

// Starts the program, or makes a client of the service; info() says when it is ready. `name` is
// the rank's, "tools/0", which begins every error. `timeout` is for each open, step and close.
//
// What happens to a program that is gone, hangs or babbles is in docs/environments.md: its open
// episodes fail with kPeerLost, and the next one that is opened starts it again.
//
// kInvalidArgument for options that validate() refuses, and a program that cannot be started;
// kResourceExhausted if there is no room for it.
std::unique_ptr<roles::Environment> make_environment(const std::string& name,
                                                     const EnvironmentOptions& options,
                                                     Duration timeout);

}  // namespace retort::environments
