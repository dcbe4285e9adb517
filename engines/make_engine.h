// The one place that knows every server: an engine of the kind that a recipe names.
#pragma once

#include <memory>
#include <string>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"

namespace retort::engines {

// `url`: one of options.url. `key`: of the server; empty: none. Asks nothing yet. kInvalidArgument
// for an address or options that cannot be; kUnauthenticated where weights would be loaded through
// doors that anybody can use (plain_admin.h).
std::unique_ptr<Engine> make_engine(const ExternalOptions& options, const std::string& url,
                                    const std::string& key);

}  // namespace retort::engines
